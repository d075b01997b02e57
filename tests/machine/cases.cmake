on_machine(ops_page_sum_gpu "workers=4")
on_machine(ops_ops_gpu "workers=4" "linears*" "embedding*" "plan*" "the ops of early exit*")
on_machine(runtime_cuda_executor_gpu "workers=7,slower=2" "*stuck*")

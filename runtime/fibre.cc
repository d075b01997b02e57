#include "runtime/fibre.h"

#include <sys/mman.h>
#include <unistd.h>

#include "core/status.h"

#if defined(__x86_64__)
// Saves the registers that a called function must keep, exchanges stacks, restores them. Rounding
// modes are the same everywhere, so they are left alone.
asm(R"(
.text
.p2align 4
.globl eventide_switch_stack
.type eventide_switch_stack, @function
eventide_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size eventide_switch_stack, .-eventide_switch_stack
)");
extern "C" void eventide_switch_stack(void** save, void* to);
#endif

namespace eventide {
namespace {

// The fibre that Entry is to start; set right before the switch to it.
thread_local Fibre* entering = nullptr;

}  // namespace

Fibre::Fibre(size_t bytes) : bytes_(bytes) {
  const size_t guard = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  void* memory = ::mmap(nullptr, bytes + guard, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  EVT_CHECK(memory != MAP_FAILED);
  EVT_CHECK(::mprotect(memory, guard, PROT_NONE) == 0);
  stack_ = static_cast<std::byte*>(memory) + guard;
}

Fibre::~Fibre() {
  const size_t guard = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  ::munmap(stack_ - guard, bytes_ + guard);
}

void Fibre::Entry() {
  Fibre* self = entering;
  self->body_(self->argument_);
  EVT_CHECK(false);
}

void Fibre::Reset(void (*body)(void*), void* argument) {
  body_ = body;
  argument_ = argument;
#if defined(__x86_64__)
  // From the top: a word that keeps the entry's stack aligned as after a call, the entry, six
  // registers.
  void** top = reinterpret_cast<void**>(stack_ + bytes_ - 64);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&Entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  stack_pointer_ = top;
#else
  ::getcontext(&context_);
  context_.uc_stack.ss_sp = stack_;
  context_.uc_stack.ss_size = bytes_;
  context_.uc_link = nullptr;
  ::makecontext(&context_, &Entry, 0);
#endif
}

void FibrePoint::Switch(Fibre* from, Fibre* to) {
  entering = to;
#if defined(__x86_64__)
  void** save = from != nullptr ? &from->stack_pointer_ : &stack_pointer_;
  eventide_switch_stack(save, to != nullptr ? to->stack_pointer_ : stack_pointer_);
#else
  ::swapcontext(from != nullptr ? &from->context_ : &context_,
                to != nullptr ? &to->context_ : &context_);
#endif
}

}  // namespace eventide

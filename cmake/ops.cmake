# eventide_ops(TARGET): builds every op of ops/ into TARGET, once for the portable CPU worker, once for
# each x86-64 level, and once for the simulator, and writes the tables that find them (runtime/ops.h).
# An op is a header with a kInfo; ops/rms_norm.h declares the struct RmsNorm. No list of ops exists.
function(eventide_ops target)
  file(GLOB headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} ops/*.h)
  set(isas 0)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
    set(isas 0 1 2)  # CpuIsa of device/arch/cpu.h
  endif()
  set(options_0 -O3)
  set(options_1 -O3 -march=x86-64-v3)
  # gcc 12 warns about its own avx512fintrin.h (__Y).
  set(options_2 -O3 -Wno-maybe-uninitialized -march=x86-64-v4 -mprefer-vector-width=512)
  set(include_0 "")
  set(include_1 "#include \"device/arch/cpu_avx2.h\"\n")
  set(include_2 "#include \"device/arch/cpu_avx512.h\"\n")
  set(include_sim "")
  set(folder ${PROJECT_BINARY_DIR}/generated/ops)
  set(declarations "")
  foreach(isa ${isas} sim)
    set(calls_${isa} "")
  endforeach()
  foreach(header ${headers})
    file(STRINGS ${PROJECT_SOURCE_DIR}/${header} info REGEX "OpInfo kInfo" LIMIT_COUNT 1)
    if(NOT info)
      # A helper of ops; should it become an op, configure again.
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${header})
      continue()
    endif()
    get_filename_component(name ${header} NAME_WE)
    string(REPLACE "_" ";" words ${name})
    set(struct "")
    foreach(word ${words})
      string(SUBSTRING ${word} 0 1 first)
      string(SUBSTRING ${word} 1 -1 rest)
      string(TOUPPER ${first} first)
      string(APPEND struct ${first}${rest})
    endforeach()
    foreach(isa ${isas} sim)
      if(isa STREQUAL "sim")
        set(arch sim)
        set(worker SimWorker)
        set(base SimWorker)
      else()
        set(arch cpu)
        set(worker "CpuWorker<${isa}>")
        set(base CpuWorkerBase)
      endif()
      set(function "AddOp_${name}_${isa}")
      set(file ${folder}/${name}_${isa}.cc)
      # The target's header comes first, as in generated programs: ops may use its words.
      file(CONFIGURE OUTPUT ${file} @ONLY CONTENT "// Made by cmake/ops.cmake.
${include_${isa}}#include \"device/arch/${arch}.h\"
#include \"${header}\"
#include \"runtime/op_functions.h\"

namespace eventide {
void ${function}(void* table, OpSink<${base}> sink) {
  SinkOp<${struct}, ${worker}, ${base}>(table, sink);
}
}  // namespace eventide
")
      target_sources(${target} PRIVATE ${file})
      if(NOT isa STREQUAL "sim")
        set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${options_${isa}}")
      endif()
      string(APPEND declarations "void ${function}(void* table, OpSink<${base}> sink);\n")
      string(APPEND calls_${isa} "  ${function}(&table, &AddToTable<${base}>);\n")
    endforeach()
  endforeach()
  set(tables "")
  set(cases "")
  foreach(isa ${isas})
    string(APPEND tables "OpTable<CpuWorkerBase> CpuOps${isa}() {
  OpTable<CpuWorkerBase> table;
${calls_${isa}}  return table;
}
")
    string(APPEND cases "    case ${isa}: {
      static const OpTable<CpuWorkerBase> table = CpuOps${isa}();
      return table;
    }
")
  endforeach()
  set(best "kCpuPortable")
  if("2" IN_LIST isas)
    set(best "__builtin_cpu_supports(\"avx512f\") && __builtin_cpu_supports(\"avx512bw\") &&
                 __builtin_cpu_supports(\"avx512cd\") && __builtin_cpu_supports(\"avx512dq\") &&
                 __builtin_cpu_supports(\"avx512vl\")
             ? kCpuV4
         : __builtin_cpu_supports(\"avx2\") && __builtin_cpu_supports(\"fma\") &&
                 __builtin_cpu_supports(\"bmi2\")
             ? kCpuV3
             : kCpuPortable")
  endif()
  file(CONFIGURE OUTPUT ${folder}/tables.cc @ONLY CONTENT "// Made by cmake/ops.cmake.
#include \"runtime/ops.h\"

namespace eventide {

${declarations}
namespace {
${tables}
OpTable<SimWorker> MakeSimOps() {
  OpTable<SimWorker> table;
${calls_sim}  return table;
}
}  // namespace

int BestCpuIsa() {
  return ${best};
}

const OpTable<CpuWorkerBase>& CpuOps(int isa) {
  switch (isa) {
${cases}  }
  static const OpTable<CpuWorkerBase> none;
  return none;
}

const OpTable<SimWorker>& SimOps() {
  static const OpTable<SimWorker> table = MakeSimOps();
  return table;
}

}  // namespace eventide
")
  target_sources(${target} PRIVATE ${folder}/tables.cc)
endfunction()

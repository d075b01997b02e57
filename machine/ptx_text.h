// PTX as text: the kernels of a module, statement by statement. What the compiler writes, not all that PTX allows.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace eventide::machine {

// A variable that a kernel or a module declares.
struct PtxVariable {
  std::string name;
  uint64_t bytes = 0, align = 1;
  std::string data;  // of .global and .const, when initialised
};

struct PtxStatement {
  std::string guard;  // the predicate of "@%p1" or "@!%p1"; empty: always
  bool guard_not = false;
  std::string opcode;
  std::vector<std::string> operands;  // "[...]" and "{...}" are one each
  int line = 0;
  int source = -1;  // of PtxModule::sources: where the compiler says it is from, with --generate-line-info
};

struct PtxKernel {
  std::string name;
  int max_threads = 0;
  std::vector<PtxVariable> params, shared, local;
  std::map<std::string, int> registers;  // name to bytes of a lane; predicates: 0. In scopes: "name@scope"
  std::vector<PtxStatement> code;
  std::map<std::string, int> labels;                        // to statements
  std::map<std::string, std::vector<std::string>> tables;  // of brx.idx
};

struct PtxModule {
  std::vector<PtxKernel> kernels;
  std::vector<PtxVariable> globals, shared;
  bool dynamic_shared = false;
  struct Source {
    int file = 0, line = 0;
    int within = -1;  // the call that was inlined, of `sources`
  };
  std::vector<Source> sources;
  std::map<int, std::string> files;
  // "ops/plan.h:12 in device/loop.h:34", or the line of PTX.
  std::string Place(const PtxStatement& statement) const;
};

// Throws std::runtime_error for what it does not understand.
PtxModule ParsePtx(const std::string& text);

}  // namespace eventide::machine

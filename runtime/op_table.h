// Which functions run an op's parts on a worker of type W: found by the op's name and the grid's
// variant. The tables of the ops in ops/ are made by the build (cmake/ops.cmake); tests add their
// own ops.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "runtime/op_functions.h"

namespace eventide {

template <class W>
class OpTable {
 public:
  void Add(const std::string& name, int variant, const OpFunctions<W>& functions) {
    functions_[{name, variant}] = functions;
  }
  // Null when there is none.
  const OpFunctions<W>* Find(const std::string& name, int variant) const {
    const auto found = functions_.find({name, variant});
    return found == functions_.end() ? nullptr : &found->second;
  }
  size_t size() const { return functions_.size(); }

 private:
  std::map<std::pair<std::string, int>, OpFunctions<W>> functions_;
};

template <class W>
void AddToTable(void* table, const char* name, int variant, const OpFunctions<W>& functions) {
  static_cast<OpTable<W>*>(table)->Add(name, variant, functions);
}

template <class Op, class Worker, class W>
void AddOp(OpTable<W>& table) {
  SinkOp<Op, Worker, W>(&table, &AddToTable<W>);
}

}  // namespace eventide

// What the families of instructions use to become Instructions: an opcode's parts, and operands as places of registers.
#pragma once

#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "machine/machine.h"

namespace eventide::machine {

template <class F>
void ForLanes(uint32_t lanes, const F& f) {
  if (lanes == kAllLanes) {
    for (int lane = 0; lane < kLanes; ++lane) f(lane);
    return;
  }
  for (; lanes != 0; lanes &= lanes - 1) f(std::countr_zero(lanes));
}

struct Decoder {
  const PtxKernel* kernel = nullptr;
  const std::map<std::string, uint64_t>* addresses = nullptr;  // of variables, by name
  Code* code = nullptr;
  std::map<std::string, uint32_t> places;  // of registers, constants and special registers

  // The statement at hand.
  const PtxStatement* text = nullptr;
  std::vector<std::string> parts;  // of the opcode, at its dots: {"setp", "lt", "s32"}
  Instruction out;

  [[noreturn]] void Fail(const std::string& what) const {
    std::string line = text->opcode;
    for (const std::string& operand : text->operands) line += " " + operand;
    throw std::runtime_error("PTX line " + std::to_string(text->line) + ", " + line + ": " + what);
  }
  const std::string& op() const { return parts[0]; }
  bool Has(const char* part) const {
    for (const std::string& p : parts) {
      if (p == part) return true;
    }
    return false;
  }
  // The types among the parts, from the last one back.
  std::string Type(size_t from_last = 0) const {
    for (size_t i = parts.size(); i > 1; --i) {
      if (Width(parts[i - 1]) < 0) continue;
      if (from_last-- == 0) return parts[i - 1];
    }
    Fail("no type");
  }
  // Bytes of a lane; 0 for predicates, -1 for what is no type.
  static int Width(const std::string& type) {
    if (type == "pred") return 0;
    if (type == "bf16" || type == "f16") return 2;
    if (type == "bf16x2" || type == "f16x2") return 4;
    if (type.size() < 2 || std::string("busf").find(type[0]) == std::string::npos) return -1;
    for (size_t i = 1; i < type.size(); ++i) {
      if (type[i] < '0' || type[i] > '9') return -1;
    }
    return std::stoi(type.substr(1)) / 8;
  }

  size_t operands() const { return text->operands.size(); }
  const std::string& operand(size_t i) const {
    if (i >= operands()) Fail("too few operands");
    return text->operands[i];
  }
  // The registers of "{a, b}", or the operand alone.
  std::vector<std::string> Vector(size_t i) const {
    std::string all = operand(i);
    if (all[0] != '{') return {all};
    std::vector<std::string> names(1);
    for (const char c : all.substr(1, all.size() - 2)) {
      if (c == ',') names.emplace_back();
      if (c != ',' && c != ' ' && c != '\t' && c != '\n') names.back() += c;
    }
    return names;
  }
  // The two of "a|b"; the second is "_", which nobody reads, where there is one only.
  std::pair<std::string, std::string> Pair(size_t i) const {
    const std::string& both = operand(i);
    const size_t bar = both.find('|');
    if (bar == std::string::npos) return {both, "_"};
    return {both.substr(0, bar), both.substr(bar + 1)};
  }
  int RegisterWidth(const std::string& name) const {
    const auto found = kernel->registers.find(name);
    return found == kernel->registers.end() ? -1 : found->second;
  }
  // Of a register, constant, special register or variable's address as `width` bytes a lane. A constant predicate is true
  // in all lanes or in none.
  uint32_t Place(const std::string& name, int width);
  uint32_t Place(size_t i, int width) { return Place(operand(i), width); }
  // A place that nobody reads, for "_".
  uint32_t Sink(const std::string& name, int width) { return Place(name == "_" ? "sink@" + std::to_string(width) : name, width); }
  uint32_t Constant(uint64_t bits, int width);
  // "[name+8]": the place of its base of `width` bytes; the offset goes to out.offset.
  uint32_t Address(const std::string& operand, int width);
};

}  // namespace eventide::machine

#include "machine/decode.h"

#include <cctype>

namespace eventide::machine {
namespace {

uint32_t Reserve(Code& code, int width) {
  const uint64_t bytes = width == 0 ? 4 : static_cast<uint64_t>(width) * kLanes;
  code.register_bytes = (code.register_bytes + bytes - 1) / bytes * bytes;
  const uint64_t place = code.register_bytes;
  code.register_bytes += bytes;
  return static_cast<uint32_t>(place);
}

std::vector<std::string> Parts(const std::string& opcode) {
  std::vector<std::string> parts(1);
  for (const char c : opcode) {
    if (c == '.') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

bool IsNumber(const std::string& text) {
  return std::isdigit(static_cast<unsigned char>(text[0])) ||
         (text.size() > 1 && text[0] == '-' && std::isdigit(static_cast<unsigned char>(text[1])));
}

uint64_t Number(const std::string& text, int width) {
  if (text[0] == '0' && (text[1] == 'f' || text[1] == 'F')) return std::stoull(text.substr(2), nullptr, 16);
  if (text[0] == '0' && (text[1] == 'd' || text[1] == 'D')) return std::stoull(text.substr(2), nullptr, 16);
  if (text.find('.') != std::string::npos) {
    if (width == 8) return std::bit_cast<uint64_t>(std::stod(text));
    return std::bit_cast<uint32_t>(std::stof(text));
  }
  if (text[0] == '-') return static_cast<uint64_t>(std::stoll(text, nullptr, 0));
  return std::stoull(text, nullptr, 0);
}

void Branch(Decoder& d) {
  const auto label = [&](const std::string& name) {
    const auto found = d.kernel->labels.find(name);
    if (found == d.kernel->labels.end()) d.Fail("no label " + name);
    return found->second;
  };
  if (d.op() == "bra") {
    d.out.flow = Flow::kJump;
    d.out.uniform = d.Has("uni");
    d.out.target = label(d.operand(0));
  } else if (d.op() == "brx") {
    d.out.flow = Flow::kTable;
    d.out.a[0] = d.Place(0, 4);
    const auto table = d.kernel->tables.find(d.operand(1));
    if (table == d.kernel->tables.end()) d.Fail("no table");
    for (const std::string& name : table->second) d.out.table.push_back(label(name));
  } else {
    d.out.flow = Flow::kExit;
  }
}

uint64_t Align(uint64_t at, uint64_t align) { return (at + align - 1) / align * align; }

}  // namespace

uint32_t Decoder::Constant(uint64_t bits, int width) {
  if (width > 0 && width < 8) bits &= (uint64_t{1} << (8 * width)) - 1;
  const std::string key = Text("=", bits, ":", width);
  const auto found = places.find(key);
  if (found != places.end()) return found->second;
  const uint32_t place = Reserve(*code, width);
  code->constants.push_back({place, width, bits});
  return places[key] = place;
}

uint32_t Decoder::Place(const std::string& name, int width) {
  if (IsNumber(name)) return Constant(width == 0 ? (Number(name, 4) != 0 ? kAllLanes : 0) : Number(name, width), width);
  const auto variable = addresses->find(name);
  if (variable != addresses->end()) return Constant(variable->second, width);
  const int own = RegisterWidth(name);
  const bool sink = name.rfind("sink@", 0) == 0;
  if (own < 0 && !sink && name[0] != '%') Fail("what is " + name + "?");
  if (own >= 0 && own != width) Fail(name + " has " + std::to_string(own) + " bytes, not " + std::to_string(width));
  const auto found = places.find(name);
  if (found != places.end()) return found->second;
  const uint32_t place = Reserve(*code, width);
  if (own < 0 && !sink) code->specials.push_back({place, name});
  return places[name] = place;
}

uint32_t Decoder::Address(const std::string& operand, int width) {
  std::string inner = operand;
  if (inner[0] == '[') inner = inner.substr(1, inner.size() - 2);
  const size_t plus = inner.find('+');
  out.offset = 0;
  if (plus != std::string::npos) {
    out.offset = std::stoll(inner.substr(plus + 1), nullptr, 0);
    inner = inner.substr(0, plus);
  }
  while (!inner.empty() && inner.back() == ' ') inner.pop_back();
  return Place(inner, width);
}

std::shared_ptr<const Code> Decode(std::shared_ptr<const PtxModule> module, const PtxKernel& kernel,
                                   const std::map<std::string, uint64_t>& globals) {
  auto code = std::make_shared<Code>();
  code->name = kernel.name;
  code->module = module;
  code->max_threads = kernel.max_threads;
  std::map<std::string, uint64_t> addresses = globals;
  for (const PtxVariable& param : kernel.params) {
    code->param_bytes = Align(code->param_bytes, param.align);
    addresses[param.name] = code->param_bytes;
    code->params.emplace_back(code->param_bytes, param.bytes);
    code->param_bytes += param.bytes;
  }
  std::vector<PtxVariable> shared = kernel.shared;
  uint64_t dynamic_align = 16;
  for (const PtxVariable& variable : module->shared) {
    if (variable.bytes > 0) shared.push_back(variable);
    dynamic_align = std::max(dynamic_align, variable.align);
  }
  for (const PtxVariable& variable : shared) {
    code->shared_bytes = Align(code->shared_bytes, variable.align);
    addresses[variable.name] = code->shared_bytes;
    code->shared_bytes += variable.bytes;
  }
  code->shared_bytes = Align(code->shared_bytes, dynamic_align);
  for (const PtxVariable& variable : module->shared) {
    if (variable.bytes == 0) addresses[variable.name] = code->shared_bytes;
  }
  for (const PtxVariable& variable : kernel.local) {
    code->local_bytes = Align(code->local_bytes, variable.align);
    addresses[variable.name] = code->local_bytes;
    code->local_bytes += variable.bytes;
  }

  Decoder d;
  d.kernel = &kernel;
  d.addresses = &addresses;
  d.code = code.get();
  for (const PtxStatement& statement : kernel.code) {
    d.text = &statement;
    d.parts = Parts(statement.opcode);
    d.out = Instruction();
    d.out.text = &statement;
    if (!statement.guard.empty()) {
      d.out.guard_not = statement.guard_not;
      d.out.guard = static_cast<int>(d.Place(statement.guard, 0));
    }
    if (d.op() == "bra" || d.op() == "brx" || d.op() == "ret" || d.op() == "exit") {
      Branch(d);
    } else if (!DecodeArithmetic(d) && !DecodeCompare(d) && !DecodeMoves(d) && !DecodeMemory(d) && !DecodeWarp(d) &&
               !DecodeAsync(d) && !DecodeTensor(d)) {
      d.Fail("not known");
    }
    code->code.push_back(d.out);
  }
  return code;
}

}  // namespace eventide::machine

// Loads, stores, atomics, and the forms of addresses.
#include <algorithm>

#include "machine/decode.h"

namespace eventide::machine {
namespace {

enum Space : uint32_t { kGeneric, kShared, kLocal, kParam };
enum Order : uint32_t { kPlain, kRelaxed, kAcquires = 2, kReleases = 4 };

Space SpaceOf(const Decoder& d) {
  if (d.Has("shared") || d.Has("shared::cta")) return kShared;
  if (d.Has("local")) return kLocal;
  if (d.Has("param")) return kParam;
  return kGeneric;  // global addresses are the host's, as are generic ones
}
uint32_t OrderOf(const Decoder& d) {
  if (d.Has("acq_rel")) return kRelaxed | kAcquires | kReleases;
  if (d.Has("acquire")) return kRelaxed | kAcquires;
  if (d.Has("release")) return kRelaxed | kReleases;
  return d.Has("relaxed") || d.Has("volatile") || d.Has("mmio") || d.op() == "atom" || d.op() == "red" ? kRelaxed : kPlain;
}

// The address of a lane.
uint64_t AddressOf(const Warp& w, const Instruction& i, uint32_t place, bool wide, int lane) {
  const uint64_t base = wide ? w.At<uint64_t>(place)[lane] : w.At<uint32_t>(place)[lane];
  return base + static_cast<uint64_t>(i.offset);
}
uint8_t* Find(Warp& w, const Instruction& i, Space space, uint64_t address, uint32_t bytes, Access access, int lane) {
  switch (space) {
    case kShared: return SharedAt(w, static_cast<uint32_t>(address), bytes, access, i);
    case kGeneric: return GlobalAt(w, address, bytes, access, i);
    case kLocal:
      if (address + bytes > w.code->local_bytes) Fail(w, i, "local memory beyond its end");
      return w.local.get() + static_cast<uint64_t>(lane) * w.code->local_bytes + address;
    default:
      if (address + bytes > w.code->param_bytes) Fail(w, i, "parameters beyond their end");
      return const_cast<uint8_t*>(w.block->grid->launch->params.data()) + address;
  }
}
Clock& HandedAt(Warp& w, Space space, uint64_t address) {
  Block& block = *w.block;
  if (space == kShared) return block.handed[static_cast<uint32_t>(address)];
  const uint64_t base = reinterpret_cast<uint64_t>(block.shared);
  if (address - base < block.shared_bytes) return block.handed[static_cast<uint32_t>(address - base)];
  return block.grid->handed[address];
}

// Whoever polls may find something new.
void Changed(Warp& w, Space space) { ++(space == kShared ? w.block->changes : w.block->grid->changes); }

// code: space, order and whether addresses are wide, as Pack makes it; bytes: of an element, and its sign; many:
// places and widths of the elements.
uint32_t Pack(Space space, uint32_t order, bool wide) { return space | order << 4 | (wide ? 1u << 8 : 0); }
Space SpaceOf(const Instruction& i) { return static_cast<Space>(i.code & 15); }
uint32_t OrderOf(const Instruction& i) { return i.code >> 4 & 15; }
bool Wide(const Instruction& i) { return (i.code >> 8 & 1) != 0; }

void LoadTo(uint8_t* to, int width, const uint8_t* from, uint32_t bytes, bool has_sign) {
  if (static_cast<uint32_t>(width) == bytes) {
    std::memcpy(to, from, bytes);
    return;
  }
  uint64_t value = 0;
  std::memcpy(&value, from, bytes);
  if (has_sign && (value >> (8 * bytes - 1) & 1) != 0) value |= ~uint64_t{0} << (8 * bytes);
  std::memcpy(to, &value, static_cast<size_t>(width));
}

template <bool kStores>
void Transfer(Warp& w, const Instruction& i, uint32_t lanes) {
  const Space space = SpaceOf(i);
  const uint32_t order = OrderOf(i), bytes = i.bytes & 0xff, count = static_cast<uint32_t>(i.many.size() / 2);
  const bool wide = Wide(i), has_sign = (i.bytes >> 8) != 0;
  // A store of what is there already, as when all threads of a role store one value, is no race.
  const Access access = order != kPlain ? Access::kSynchronises : kStores ? Access::kWrite : Access::kRead;
  ForLanes(lanes, [&](int l) {
    const uint64_t address = AddressOf(w, i, i.a[0], wide, l);
    uint8_t values[64];
    if constexpr (kStores) {
      for (uint32_t k = 0; k < count; ++k) {
        std::memcpy(values + k * bytes, w.At<uint8_t>(i.many[2 * k]) + l * static_cast<int>(i.many[2 * k + 1]), bytes);
      }
      uint8_t* memory = Find(w, i, space, address, bytes * count, Access::kSynchronises, l);
      if (access == Access::kWrite && std::memcmp(memory, values, bytes * count) == 0) return;
      Find(w, i, space, address, bytes * count, access, l);
      if ((order & kReleases) != 0) Release(w, HandedAt(w, space, address));
      if (order != kPlain && std::memcmp(memory, values, bytes * count) != 0) Changed(w, space);
      std::memcpy(memory, values, bytes * count);
    } else {
      const uint8_t* memory = Find(w, i, space, address, bytes * count, access, l);
      if ((order & kAcquires) != 0) Acquire(w, HandedAt(w, space, address));
      // All is read before anything is written: an element's register may be the address's.
      std::memcpy(values, memory, bytes * count);
      for (uint32_t k = 0; k < count; ++k) {
        const int width = static_cast<int>(i.many[2 * k + 1]);
        LoadTo(w.At<uint8_t>(i.many[2 * k]) + l * width, width, values + k * bytes, bytes, has_sign);
      }
    }
  });
}

bool DecodeTransfer(Decoder& d, bool stores) {
  const std::string type = d.Type();
  const int bytes = Decoder::Width(type);
  const std::string& where = d.operand(stores ? 0 : 1);
  const std::string inner = where.substr(1, where.find_first_of("+]") - 1);
  const bool wide = d.RegisterWidth(inner) != 4;
  d.out.a[0] = d.Address(where, wide ? 8 : 4);
  for (const std::string& name : d.Vector(stores ? 1 : 0)) {
    const int own = d.RegisterWidth(name);
    const int width = own > 0 ? own : bytes;
    d.out.many.push_back(d.Sink(name, width));
    d.out.many.push_back(static_cast<uint32_t>(width));
  }
  d.out.code = Pack(SpaceOf(d), OrderOf(d), wide);
  d.out.bytes = static_cast<uint32_t>(bytes) | (type[0] == 's' ? 1u << 8 : 0);
  if (!stores && OrderOf(d) != kPlain && !d.Has("volatile")) d.out.flow = Flow::kYields;
  d.out.polls_global = SpaceOf(d) != kShared;
  d.out.run = stores ? Transfer<true> : Transfer<false>;
  return true;
}

template <class T>
T Combined(const std::string& how, T old, T a, T b) {
  if (how == "add") {
    if constexpr (std::is_floating_point_v<T>) return old + a;
    else return static_cast<T>(static_cast<uint64_t>(old) + static_cast<uint64_t>(a));
  }
  if (how == "exch") return a;
  if (how == "cas") return old == a ? b : old;
  if (how == "min") return std::min(old, a);
  if (how == "max") return std::max(old, a);
  if constexpr (std::is_integral_v<T>) {
    if (how == "or") return static_cast<T>(old | a);
    if (how == "and") return static_cast<T>(old & a);
    if (how == "xor") return static_cast<T>(old ^ a);
    if (how == "inc") return old >= a ? T{0} : static_cast<T>(old + 1);
    if (how == "dec") return old == 0 || old > a ? a : static_cast<T>(old - 1);
  }
  throw Fault("atomic operation " + how);
}
// a[0]: address; a[1]: what was there; a[2], a[3]: operands. `target`: index of the operation among kOperations.
constexpr const char* kOperations[] = {"add", "exch", "cas", "min", "max", "or", "and", "xor", "inc", "dec"};

template <class T>
void Atomic(Warp& w, const Instruction& i, uint32_t lanes) {
  const Space space = SpaceOf(i);
  const uint32_t order = OrderOf(i);
  const std::string how = kOperations[i.target];
  ForLanes(lanes, [&](int l) {
    const uint64_t address = AddressOf(w, i, i.a[0], Wide(i), l);
    uint8_t* memory = Find(w, i, space, address, sizeof(T), Access::kSynchronises, l);
    if ((order & kAcquires) != 0) Acquire(w, HandedAt(w, space, address));
    if ((order & kReleases) != 0) Release(w, HandedAt(w, space, address));
    T old;
    std::memcpy(&old, memory, sizeof(T));
    const T changed = Combined<T>(how, old, w.At<T>(i.a[2])[l], w.At<T>(i.a[3])[l]);
    if (changed != old) Changed(w, space);
    std::memcpy(memory, &changed, sizeof(T));
    w.At<T>(i.a[1])[l] = old;
  });
}
bool DecodeAtomic(Decoder& d) {
  const bool reduces = d.op() == "red";
  const std::string type = d.Type();
  const int width = Decoder::Width(type);
  const size_t first = reduces ? 0 : 1;
  const std::string& where = d.operand(first);
  const std::string inner = where.substr(1, where.find_first_of("+]") - 1);
  const bool wide = d.RegisterWidth(inner) != 4;
  d.out.a[0] = d.Address(where, wide ? 8 : 4);
  d.out.a[1] = d.Sink(reduces ? "_" : d.operand(0), width);
  d.out.a[2] = d.Place(first + 1, width);
  d.out.a[3] = d.operands() > first + 2 ? d.Place(first + 2, width) : d.out.a[2];
  d.out.code = Pack(SpaceOf(d), OrderOf(d), wide);
  for (int k = 0; k < static_cast<int>(std::size(kOperations)); ++k) {
    if (d.Has(kOperations[k])) d.out.target = k;
  }
  if (d.out.target < 0) return false;
  if (type == "f32") d.out.run = Atomic<float>;
  if (type == "u32" || type == "b32") d.out.run = Atomic<uint32_t>;
  if (type == "s32") d.out.run = Atomic<int32_t>;
  if (type == "u64" || type == "b64") d.out.run = Atomic<uint64_t>;
  if (type == "s64") d.out.run = Atomic<int64_t>;
  // In a loop these are polls.
  if (d.Has("cas") || d.Has("exch")) d.out.flow = Flow::kYields;
  return d.out.run != nullptr;
}

// cvta: shared addresses become generic ones, and back. code: 0 adds the window, 1 takes it off, 2 leaves
// all as it is; 3: of a parameter.
void ConvertAddress(Warp& w, const Instruction& i, uint32_t lanes) {
  uint64_t* d = w.At<uint64_t>(i.a[0]);
  const uint64_t* a = w.At<uint64_t>(i.a[1]);
  const uint64_t window = i.code == 3 ? reinterpret_cast<uint64_t>(w.block->grid->launch->params.data())
                                      : reinterpret_cast<uint64_t>(w.block->shared);
  ForLanes(lanes, [&](int l) { d[l] = i.code == 1 ? a[l] - window : i.code == 2 ? a[l] : a[l] + window; });
}

void Nothing(Warp&, const Instruction&, uint32_t) {}

}  // namespace

bool DecodeMemory(Decoder& d) {
  const std::string& op = d.op();
  if (op == "ld" || op == "ldu") return DecodeTransfer(d, false);
  if (op == "st") return DecodeTransfer(d, true);
  if (op == "atom" || op == "red") return DecodeAtomic(d);
  if (op == "cvta") {
    if (d.Has("local")) d.Fail("addresses of local memory");
    d.out.a[0] = d.Place(size_t{0}, 8);
    d.out.a[1] = d.Place(1, 8);
    d.out.code = d.Has("param") ? 3 : !d.Has("shared") ? 2 : d.Has("to") ? 1 : 0;
    d.out.run = ConvertAddress;
    return true;
  }
  // Order is what releases, acquires and barriers say: fences of proxies are the lint's business.
  if (op == "fence" || op == "membar" || op == "prefetch" || op == "prefetchu") {
    d.out.run = Nothing;
    return true;
  }
  return false;
}

}  // namespace eventide::machine

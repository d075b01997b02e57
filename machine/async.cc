// mbarriers, and what happens some time after its instruction: copies of cp.async and of the bulk copy engine.
#include <algorithm>
#include <utility>

#include "machine/decode.h"
#include "machine/tensor_map.h"

namespace eventide::machine {
namespace {

// As this machine keeps an mbarrier in its eight bytes.
struct Mbarrier {
  uint64_t pending : 20, expected : 20, phase : 1;
  int64_t bytes : 23;  // still to come
};
static_assert(sizeof(Mbarrier) == 8);
constexpr uint32_t kMostArrivals = (1u << 20) - 1, kMostBytes = (1u << 20) - 1;  // PTX ISA, mbarrier

Mbarrier Load(const Block& block, uint32_t address) {
  Mbarrier barrier;
  std::memcpy(&barrier, block.shared + address, sizeof(barrier));
  return barrier;
}
void Store(Block& block, uint32_t address, Mbarrier barrier) {
  if (barrier.pending == 0 && barrier.bytes == 0) {
    barrier.phase ^= 1;
    Block::Phases& phases = block.phases[address];
    phases.complete = std::move(phases.pending);
    phases.pending.clear();
    ++block.changes;
    barrier.pending = barrier.expected;
  }
  std::memcpy(block.shared + address, &barrier, sizeof(barrier));
}

void Arrive(Block& block, uint32_t address, uint32_t count) {
  Mbarrier barrier = Load(block, address);
  if (barrier.pending < count) throw Fault(Text(count, " arrivals at an mbarrier that expects ", barrier.pending + 0, " more"));
  barrier.pending -= count;
  Store(block, address, barrier);
}

uint32_t SharedAddress(const Warp& w, const Instruction& i, int lane) {
  return w.At<uint32_t>(i.a[0])[lane] + static_cast<uint32_t>(i.offset);
}
uint64_t FromAddress(const Warp& w, const Instruction& i, int lane) {
  return w.At<uint64_t>(i.a[1])[lane] + static_cast<uint64_t>(i.from_offset);
}
void CheckBarrier(Warp& w, const Instruction& i, uint32_t address) {
  SharedAt(w, address, 8, Access::kSynchronises, i);
}

void Init(Warp& w, const Instruction& i, uint32_t lanes) {
  ForLanes(lanes, [&](int l) {
    const uint32_t address = SharedAddress(w, i, l), count = w.At<uint32_t>(i.a[1])[l];
    CheckBarrier(w, i, address);
    if (count == 0 || count > kMostArrivals) Fail(w, i, Text("an mbarrier of ", count, " arrivals"));
    w.block->phases.erase(address);
    Mbarrier barrier = {};
    barrier.pending = barrier.expected = count;
    std::memcpy(w.block->shared + address, &barrier, sizeof(barrier));
  });
}
// mbarrier.arrive and .expect_tx: a[1] is the count or the bytes. code: 1 with bytes.
void ArriveNow(Warp& w, const Instruction& i, uint32_t lanes) {
  ForLanes(lanes, [&](int l) {
    const uint32_t address = SharedAddress(w, i, l), n = w.At<uint32_t>(i.a[1])[l];
    CheckBarrier(w, i, address);
    if (i.code == 1) {
      Mbarrier barrier = Load(*w.block, address);
      if (n > kMostBytes || barrier.bytes + int64_t{n} > kMostBytes) Fail(w, i, "more bytes than an mbarrier counts");
      barrier.bytes += n;
      std::memcpy(w.block->shared + address, &barrier, sizeof(barrier));
    }
    Release(w, w.block->phases[address].pending);
    try {
      Arrive(*w.block, address, i.code == 1 ? 1 : n);
    } catch (const Fault& fault) {
      Fail(w, i, fault.what());
    }
  });
}
// {test,try}_wait.parity.
void Test(Warp& w, const Instruction& i, uint32_t lanes) {
  uint32_t& p = *w.At<uint32_t>(i.a[1]);
  ForLanes(lanes, [&](int l) {
    const uint32_t address = SharedAddress(w, i, l), parity = w.At<uint32_t>(i.a[2])[l];
    CheckBarrier(w, i, address);
    const bool complete = Load(*w.block, address).phase != (parity & 1);
    if (complete) Acquire(w, w.block->phases[address].complete);
    p = (p & ~(1u << l)) | static_cast<uint32_t>(complete) << l;
  });
}

// cp.async: `code` bytes, of which a[2] are read and the rest is zeros.
void CopyPiece(Warp& w, const Instruction& i, uint32_t lanes) {
  ForLanes(lanes, [&](int l) {
    const uint32_t read = w.At<uint32_t>(i.a[2])[l];
    w.pieces[l].push_back({SharedAddress(w, i, l), FromAddress(w, i, l), i.code, std::min(read, i.code)});
  });
}
void CopyPieces(Block& block, const std::vector<Warp::Piece>& pieces) {
  for (const Warp::Piece& piece : pieces) {
    std::memset(block.shared + piece.to, 0, piece.bytes);
    std::memcpy(block.shared + piece.to, reinterpret_cast<const void*>(piece.from), piece.read);
  }
}
// Reads and writes of copies count from where they are put under way: cp.async's from its wait, or its arrival's.
void NotePieces(Warp& w, const Instruction& i, const std::vector<Warp::Piece>& pieces) {
  for (const Warp::Piece& piece : pieces) {
    if (piece.read > 0) GlobalAt(w, piece.from, piece.read, Access::kRead, i);
    SharedAt(w, piece.to, piece.bytes, Access::kWrite, i);
    if (piece.to % std::min(piece.bytes, 16u) != 0 || piece.from % std::min(piece.bytes, 16u) != 0)
      Fail(w, i, "a copy that is not aligned");
  }
}
void AwaitPieces(Warp& w, const Instruction& i, uint32_t lanes) {
  ForLanes(lanes, [&](int l) {
    NotePieces(w, i, w.pieces[l]);
    CopyPieces(*w.block, w.pieces[l]);
    w.pieces[l].clear();
  });
}
// cp.async.mbarrier.arrive: when this lane's pieces are there. code: 1 noinc.
void ArriveWithPieces(Warp& w, const Instruction& i, uint32_t lanes) {
  ForLanes(lanes, [&](int l) {
    const uint32_t address = SharedAddress(w, i, l);
    CheckBarrier(w, i, address);
    if (i.code == 0) {
      Mbarrier barrier = Load(*w.block, address);
      ++barrier.pending;
      std::memcpy(w.block->shared + address, &barrier, sizeof(barrier));
    }
    Deferred deferred;
    deferred.pieces = std::move(w.pieces[l]);
    w.pieces[l].clear();
    deferred.barrier = address;
    deferred.arrives = true;
    Defer(w, std::move(deferred), i);
  });
}
// cp.async.bulk: [to], [from], bytes, [barrier].
void CopyBulk(Warp& w, const Instruction& i, uint32_t lanes) {
  ForLanes(lanes, [&](int l) {
    const uint32_t to = SharedAddress(w, i, l), bytes = w.At<uint32_t>(i.a[2])[l];
    const uint64_t from = FromAddress(w, i, l);
    if (to % 16 != 0 || from % 16 != 0 || bytes % 16 != 0)
      Fail(w, i, Text("a bulk copy of ", bytes, " bytes from ", Hex{from}, " to ", to, ": all must be multiples of 16"));
    Deferred deferred;
    if (bytes > 0) deferred.pieces.push_back({to, from, bytes, bytes});
    deferred.barrier = w.At<uint32_t>(i.a[3])[l] + static_cast<uint32_t>(i.barrier_offset);
    CheckBarrier(w, i, deferred.barrier);
    Defer(w, std::move(deferred), i);
  });
}
// cp.async.bulk.tensor.5d: [to], [map, {..}], [barrier].
void CopyBox(Warp& w, const Instruction& i, uint32_t lanes) {
  ForLanes(lanes, [&](int l) {
    Deferred deferred;
    deferred.to = SharedAddress(w, i, l);
    deferred.map = FromAddress(w, i, l);
    for (int k = 0; k < 5; ++k) deferred.at[k] = w.At<int32_t>(i.many[static_cast<size_t>(k)])[l];
    deferred.barrier = w.At<uint32_t>(i.a[3])[l] + static_cast<uint32_t>(i.barrier_offset);
    if (deferred.to % 128 != 0) Fail(w, i, "a box that does not go to a multiple of 128 bytes");
    CheckBarrier(w, i, deferred.barrier);
    Defer(w, std::move(deferred), i);
  });
}

// A box has as many tokens as it has, whatever a task needs: what lies beyond may be written meanwhile, and must not
// count. So a word that is read in a race is no fault, but becomes NaN, and a kernel that lets it count has a wrong result.
void BringBox(Warp& w, const Instruction& i, Deferred& deferred) {
  Grid& grid = *w.block->grid;
  const uint8_t* map = GlobalAt(w, deferred.map, sizeof(TensorMap), Access::kRead, i);
  deferred.pieces = PiecesOf(*reinterpret_cast<const TensorMap*>(map), deferred.at, deferred.to);
  for (const Warp::Piece& piece : deferred.pieces) {
    SharedAt(w, piece.to, piece.bytes, Access::kWrite, i);
    if (piece.read > 0) GlobalAt(w, piece.from, piece.read, Access::kSynchronises, i);
    for (uint32_t k = 0; k < piece.read && grid.settings.races; k += 4) {
      if (grid.shadow.Races(piece.from + k, 4, w.clock)) deferred.poisoned.push_back(piece.to + k);
    }
  }
}

bool DecodeBarrierWord(Decoder& d) {
  if (d.Has("init")) {
    d.out.a[0] = d.Address(d.operand(0), 4);
    d.out.a[1] = d.Place(1, 4);
    d.out.run = Init;
    return true;
  }
  if (d.Has("arrive")) {
    d.out.a[0] = d.Address(d.operand(1), 4);
    d.out.a[1] = d.operands() > 2 ? d.Place(2, 4) : d.Constant(1, 4);
    d.out.code = d.Has("expect_tx") ? 1 : 0;
    d.out.run = ArriveNow;
    return true;
  }
  if (d.Has("test_wait") || d.Has("try_wait")) {
    d.out.a[1] = d.Place(size_t{0}, 0);
    d.out.a[0] = d.Address(d.operand(1), 4);
    d.out.a[2] = d.Place(2, 4);
    d.out.flow = Flow::kYields;
    d.out.run = Test;
    return d.Has("parity");
  }
  return false;
}

}  // namespace

void Defer(Warp& w, Deferred deferred, const Instruction& at) {
  Block& block = *w.block;
  deferred.agent = block.first_agent + static_cast<uint32_t>(block.warps.size()) + block.next_engine++ % kEngines;
  // A copy is its engine's doing, after all that its warp has done so far.
  Clock& engines = block.grid->engines;
  deferred.clock = w.clock;
  deferred.clock[deferred.agent] = ++engines[deferred.agent];
  const Clock own = std::exchange(w.clock, deferred.clock);
  const uint32_t agent = std::exchange(w.agent, deferred.agent);
  if (deferred.map != 0) {
    BringBox(w, at, deferred);
  } else {
    NotePieces(w, at, deferred.pieces);
  }
  w.clock = own;
  w.agent = agent;
  block.deferred.push_back(std::move(deferred));
}

void RunDeferred(Block& block, size_t index) {
  const Deferred deferred = std::move(block.deferred[index]);
  block.deferred.erase(block.deferred.begin() + static_cast<std::ptrdiff_t>(index));
  CopyPieces(block, deferred.pieces);
  for (const uint32_t word : deferred.poisoned) std::memset(block.shared + word, 0xff, 4);
  Join(block.phases[deferred.barrier].pending, deferred.clock);
  if (deferred.arrives) return Arrive(block, deferred.barrier, 1);
  Mbarrier barrier = Load(block, deferred.barrier);
  for (const Warp::Piece& piece : deferred.pieces) barrier.bytes -= piece.bytes;
  Store(block, deferred.barrier, barrier);
}

bool DecodeAsync(Decoder& d) {
  if (d.op() == "mbarrier") return DecodeBarrierWord(d);
  if (d.op() != "cp") return false;
  if (d.Has("tensor") && d.Has("5d")) {
    const std::string& box = d.operand(1);  // [map, {a, b, c, d, e}]
    const size_t comma = box.find(','), open = box.find('{');
    d.out.a[1] = d.Address(box.substr(1, comma - 1), 8);
    d.out.from_offset = d.out.offset;
    std::string name;
    for (const char c : box.substr(open + 1)) {
      if (c == ',' || c == '}') {
        d.out.many.push_back(d.Place(name, 4));
        name.clear();
      } else if (c != ' ' && c != ']') {
        name += c;
      }
    }
    d.out.a[3] = d.Address(d.operand(2), 4);
    d.out.barrier_offset = d.out.offset;
    d.out.a[0] = d.Address(d.operand(0), 4);
    d.out.run = CopyBox;
    return d.out.many.size() == 5;
  }
  if (d.Has("bulk")) {
    d.out.a[3] = d.Address(d.operand(3), 4);
    d.out.barrier_offset = d.out.offset;
    d.out.a[1] = d.Address(d.operand(1), 8);
    d.out.from_offset = d.out.offset;
    d.out.a[2] = d.Place(2, 4);
    d.out.a[0] = d.Address(d.operand(0), 4);
    d.out.run = CopyBulk;
    return true;
  }
  if (d.Has("mbarrier")) {
    d.out.a[0] = d.Address(d.operand(0), 4);
    d.out.code = d.Has("noinc") ? 1 : 0;
    d.out.run = ArriveWithPieces;
    return true;
  }
  if (d.Has("wait_all")) {
    d.out.run = AwaitPieces;
    return true;
  }
  if (d.Has("ca") || d.Has("cg")) {
    d.out.a[1] = d.Address(d.operand(1), 8);
    d.out.from_offset = d.out.offset;
    d.out.a[0] = d.Address(d.operand(0), 4);
    d.out.code = static_cast<uint32_t>(std::stoul(d.operand(2)));
    d.out.a[2] = d.operands() > 3 ? d.Place(3, 4) : d.Constant(d.out.code, 4);
    d.out.run = CopyPiece;
    return true;
  }
  return false;
}

}  // namespace eventide::machine

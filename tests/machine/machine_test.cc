// The machine that runs PTX: it computes what kernels say, and objects to what they must not do.
#include "machine/machine.h"

#include "absl/strings/str_cat.h"
#include "tests/support/test.h"

namespace eventide::machine {
namespace {

// A kernel of one parameter, the address of its memory, with some registers and 64 words of shared memory.
std::string Kernel(const std::string& body) {
  return absl::StrCat(
      ".version 9.0\n.target sm_90a\n.address_size 64\n"
      ".visible .entry k(\n  .param .u64 k_param_0\n)\n.maxntid 128\n{\n"
      "  .reg .pred %p<9>;\n  .reg .b16 %h<4>;\n  .reg .b32 %r<20>;\n  .reg .f32 %f<9>;\n  .reg .b64 %rd<9>;\n"
      "  .shared .align 16 .b8 room[256];\n  .shared .align 8 .b8 bar[16];\n"
      "  ld.param.u64 %rd0, [k_param_0];\n  mov.u32 %r0, %tid.x;\n  shl.b32 %r1, %r0, 2;\n"
      "  mul.wide.u32 %rd1, %r0, 4;\n  add.s64 %rd2, %rd0, %rd1;\n  mov.u32 %r10, room;\n"
      "  add.s32 %r11, %r10, %r1;\n  shr.u32 %r2, %r0, 5;\n  and.b32 %r3, %r0, 31;\n",
      body, "  ret;\n}\n");
}

struct Outcome {
  std::vector<uint32_t> memory;
  std::string fault;  // empty: none
};

Outcome RunKernel(const std::string& body, uint32_t threads, uint64_t seed = 1, uint32_t blocks = 1) {
  const auto module = std::make_shared<const PtxModule>(ParsePtx(Kernel(body)));
  Launch launch;
  launch.code = Decode(module, module->kernels[0], {});
  launch.threads = threads;
  launch.grid[0] = blocks;
  Outcome outcome;
  outcome.memory.resize(256);
  const uint64_t address = reinterpret_cast<uint64_t>(outcome.memory.data());
  GlobalMemory memory;
  memory.Add(address, outcome.memory.size() * 4);
  launch.params.resize(8);
  std::memcpy(launch.params.data(), &address, 8);
  Settings settings;
  settings.seed = seed;
  try {
    Run(launch, &memory, settings);
  } catch (const Fault& fault) {
    outcome.fault = fault.what();
  }
  return outcome;
}

// Of `seeds` orders, how many end in a fault that says `what`; any other fault fails the test.
int Faults(const std::string& body, uint32_t threads, const std::string& what, int seeds = 10) {
  int count = 0;
  for (int seed = 0; seed < seeds; ++seed) {
    const Outcome outcome = RunKernel(body, threads, static_cast<uint64_t>(seed));
    INFO(outcome.fault);
    CHECK((outcome.fault.empty() || outcome.fault.find(what) != std::string::npos));
    count += !outcome.fault.empty();
  }
  return count;
}

TEST_CASE("the machine: lanes compute, part and come together") {
  // Odd lanes double, even ones add; then every lane takes its neighbour's.
  const Outcome outcome = RunKernel(
      "  and.b32 %r4, %r0, 1;\n  setp.eq.s32 %p1, %r4, 0;\n  @%p1 bra $even;\n"
      "  mul.lo.s32 %r5, %r0, 2;\n  bra.uni $both;\n$even:\n  add.s32 %r5, %r0, 100;\n$both:\n"
      "  shfl.sync.bfly.b32 %r6, %r5, 1, 31, -1;\n  st.global.u32 [%rd2], %r6;\n",
      64);
  REQUIRE(outcome.fault.empty());
  for (uint32_t i = 0; i < 64; ++i) CHECK(outcome.memory[i] == (i % 2 == 0 ? 2 * (i + 1) : i - 1 + 100));
}

TEST_CASE("the machine: shared memory between warps needs a barrier") {
  const std::string stores = "  st.shared.u32 [%r11], %r0;\n",
                    loads = "  xor.b32 %r5, %r1, 128;\n  add.s32 %r5, %r10, %r5;\n  ld.shared.u32 %r6, [%r5];\n"
                            "  st.global.u32 [%rd2], %r6;\n";
  CHECK(Faults(stores + loads, 64, "a race") == 10);
  CHECK(Faults(stores + "  bar.sync 0;\n" + loads, 64, "") == 0);
  // A barrier of one warp orders nothing between two.
  CHECK(Faults(stores + "  bar.warp.sync -1;\n" + loads, 64, "a race") == 10);
  const Outcome outcome = RunKernel(stores + "  bar.sync 0;\n" + loads, 64);
  for (uint32_t i = 0; i < 64; ++i) CHECK(outcome.memory[i] == (i ^ 32));
}

TEST_CASE("the machine: halves of a word are words of their own") {
  // Threads of two warps write halves of the same words, or the same halves.
  const auto kernel = [](const std::string& half) {
    return "  add.s32 %r6, %r0, 1;\n  cvt.u16.u32 %h1, %r6;\n  shl.b32 %r4, %r3, 2;\n  add.s32 %r4, %r10, %r4;\n" +
           half + "  add.s32 %r4, %r4, %r5;\n  st.shared.u16 [%r4], %h1;\n";
  };
  CHECK(Faults(kernel("  shl.b32 %r5, %r2, 1;\n"), 64, "") == 0);
  CHECK(Faults(kernel("  mov.b32 %r5, 0;\n"), 64, "a race") == 10);
}

TEST_CASE("the machine: what a release hands over an acquire takes, and a relaxed word does not") {
  const auto kernel = [](const std::string& red, const std::string& ld) {
    return "  setp.ne.s32 %p1, %r0, 0;\n  @%p1 bra $other;\n  st.shared.u32 [%r10], 7;\n  " + red +
           " [%rd0], 1;\n  bra.uni $end;\n$other:\n  setp.ne.s32 %p2, %r0, 32;\n  @%p2 bra $end;\n$poll:\n  " + ld +
           " %r4, [%rd0];\n  setp.eq.s32 %p3, %r4, 0;\n  @%p3 bra $poll;\n  ld.shared.u32 %r5, [%r10];\n"
           "  st.global.u32 [%rd0+8], %r5;\n$end:\n";
  };
  CHECK(Faults(kernel("red.release.gpu.global.add.u32", "ld.acquire.gpu.global.u32"), 64, "") == 0);
  CHECK(Faults(kernel("red.relaxed.gpu.global.add.u32", "ld.acquire.gpu.global.u32"), 64, "a race") == 10);
  CHECK(RunKernel(kernel("red.release.gpu.global.add.u32", "ld.acquire.gpu.global.u32"), 64).memory[2] == 7);
}

// One lane copies 64 bytes of global memory, all warps may wait for them.
std::string Copy(const std::string& waits) {
  return "  mov.u32 %r12, bar;\n  setp.ne.s32 %p1, %r0, 0;\n  @%p1 bra $ready;\n"
         "  mbarrier.init.shared::cta.b64 [%r12], 1;\n  mov.u32 %r13, 64;\n$ready:\n  bar.sync 0;\n  @%p1 bra $copied;\n"
         "  { .reg .b64 t; mbarrier.arrive.expect_tx.shared::cta.b64 t, [%r12], 64; }\n"
         "  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r10], [%rd0], 64, [%r12];\n$copied:\n" +
         waits + "  and.b32 %r4, %r1, 63;\n  add.s32 %r4, %r10, %r4;\n  ld.shared.u32 %r5, [%r4];\n"
                 "  st.global.u32 [%rd2+512], %r5;\n";
}

TEST_CASE("the machine: copies land late, and whoever reads them waits") {
  const std::string waits =
      "$poll:\n  mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r12], 0;\n  @!%p2 bra $poll;\n";
  CHECK(Faults(Copy(waits), 64, "") == 0);
  CHECK(Faults(Copy(""), 64, "a race") == 10);
  // The phase before has always been.
  CHECK(Faults(Copy("$poll:\n  mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r12], 1;\n  @!%p2 bra $poll;\n"), 64,
               "a race") == 10);
}

TEST_CASE("the machine: an mbarrier's phase before hands over nothing of the one that goes on") {
  // After a store there is an arrival. Who waits for its phase may read; who asks for the phase before may not.
  const auto kernel = [](int arrivals, int parity) {
    return absl::StrCat(
        "  mov.u32 %r12, bar;\n  setp.ne.s32 %p1, %r0, 0;\n  @%p1 bra $ready;\n"
        "  mbarrier.init.shared::cta.b64 [%r12], ", arrivals,
        ";\n$ready:\n  bar.sync 0;\n  @%p1 bra $wait;\n  st.shared.u32 [%r10], 5;\n"
        "  { .reg .b64 t; mbarrier.arrive.shared::cta.b64 t, [%r12]; }\n$wait:\n  setp.lt.s32 %p3, %r0, 32;\n  @%p3 bra $end;\n"
        "$poll:\n  mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r12], ", parity,
        ";\n  @!%p2 bra $poll;\n  ld.shared.u32 %r5, [%r10];\n  st.global.u32 [%rd2], %r5;\n$end:\n");
  };
  CHECK(Faults(kernel(1, 0), 64, "") == 0);
  CHECK(Faults(kernel(2, 1), 64, "a race") == 10);
}

TEST_CASE("the machine: copies have offsets of their own, and a wait for one says nothing of another") {
  const auto kernel = [](int others, const std::string& waits) {
    std::string body =
        "  mov.u32 %r12, bar;\n  setp.ne.s32 %p1, %r0, 0;\n  @%p1 bra $ready;\n"
        "  mbarrier.init.shared::cta.b64 [%r12], 1;\n  mbarrier.init.shared::cta.b64 [%r12+8], 1;\n$ready:\n  bar.sync 0;\n"
        "  @%p1 bra $copied;\n  { .reg .b64 t; mbarrier.arrive.expect_tx.shared::cta.b64 t, [%r12], 16; }\n"
        "  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r10+64], [%rd0+128], 16, [%r12];\n";
    absl::StrAppend(&body, "  { .reg .b64 t; mbarrier.arrive.expect_tx.shared::cta.b64 t, [%r12+8], ", 16 * others, "; }\n");
    for (int i = 0; i < others; ++i) {
      absl::StrAppend(&body, "  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r10+", 80 + 16 * (i % 8),
                      "], [%rd0], 16, [%r12+8];\n");
    }
    return body + "$copied:\n" + waits + "  ld.shared.u32 %r5, [%r10+64];\n  st.global.u32 [%rd2+512], %r5;\n";
  };
  const std::string both =
      "$first:\n  mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r12], 0;\n  @!%p2 bra $first;\n"
      "$second:\n  mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r12+8], 0;\n  @!%p3 bra $second;\n";
  CHECK(Faults(kernel(1, both), 64, "") == 0);
  CHECK(Faults(kernel(7, both.substr(both.find("$second"))), 64, "a race") == 10);
  // Nine copies of which two go to one place.
  CHECK(Faults(kernel(9, both), 64, "a race") == 10);
}

TEST_CASE("the machine: fields of bits have signs, and what is not known is refused") {
  const auto value = [](const std::string& body) { return RunKernel(body + "  st.global.u32 [%rd2], %r5;\n", 32).memory[0]; };
  CHECK(value("  mov.b32 %r4, 0x80000000;\n  bfe.s32 %r5, %r4, 28, 8;\n") == 0xfffffff8);
  CHECK(value("  mov.b32 %r4, 0x80000000;\n  bfe.s32 %r5, %r4, 4, 32;\n") == 0xf8000000);
  CHECK(value("  mov.b32 %r4, 0x80000000;\n  bfe.u32 %r5, %r4, 28, 8;\n") == 8);
  CHECK(value("  mov.b32 %r4, 0x00000070;\n  bfe.s32 %r5, %r4, 4, 3;\n") == 0xffffffff);
  CHECK_THROWS(RunKernel("  add.rz.f32 %f1, %f1, %f2;\n", 32));
  CHECK_THROWS(RunKernel("  cvt.sat.u8.s32 %r5, %r4;\n", 32));
  CHECK_THROWS(RunKernel("$twice:\n$twice:\n", 32));
}

TEST_CASE("the machine: barriers that cannot be passed, and those that too many pass") {
  const std::string init = "  mov.u32 %r12, bar;\n  setp.ne.s32 %p1, %r0, 0;\n  @%p1 bra $ready;\n"
                           "  mbarrier.init.shared::cta.b64 [%r12], 1;\n$ready:\n  bar.sync 0;\n";
  CHECK(Faults(init + "  { .reg .b64 t; mbarrier.arrive.shared::cta.b64 t, [%r12], 2; }\n", 32, "arrivals at an mbarrier") ==
        10);
  const Outcome stuck = RunKernel(
      init + "$poll:\n  mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r12], 0;\n  @!%p2 bra $poll;\n", 32);
  CHECK(stuck.fault.find("nothing but polls") != std::string::npos);
  // Lanes that do not come to the warp's barrier, and warps that expect different numbers.
  const Outcome parted = RunKernel(
      "  setp.lt.s32 %p1, %r3, 16;\n  @%p1 bra $first;\n  shfl.sync.bfly.b32 %r6, %r0, 1, 31, -1;\n  bra.uni $end;\n"
      "$first:\n  shfl.sync.bfly.b32 %r7, %r0, 1, 31, -1;\n$end:\n",
      32);
  CHECK(parted.fault.find("lanes wait for each other") != std::string::npos);
  const Outcome counts = RunKernel("  add.s32 %r4, %r2, 1;\n  shl.b32 %r4, %r4, 6;\n  barrier.sync 1, %r4;\n", 64);
  CHECK(counts.fault.find("and 64 elsewhere") + counts.fault.find("and 128 elsewhere") != 2 * std::string::npos);
}

TEST_CASE("the machine: lanes of a warp may wait for one of them") {
  // Lane 0 publishes what the others poll for, at a place that they come to first.
  const std::string body =
      "  setp.eq.s32 %p1, %r0, 0;\n  @%p1 bra $one;\n$poll:\n  ld.acquire.gpu.global.u32 %r4, [%rd0];\n"
      "  setp.eq.s32 %p2, %r4, 0;\n  @%p2 bra $poll;\n  bra.uni $end;\n$one:\n  red.release.gpu.global.add.u32 [%rd0], 1;\n"
      "$end:\n";
  CHECK(Faults(body, 32, "") == 0);
}

TEST_CASE("the machine: lanes part at no jump that says they do not") {
  const std::string test = "  setp.lt.s32 %p1, %r0, ", jump = ";\n  @%p1 bra.uni $end;\n  st.global.u32 [%rd2], %r0;\n$end:\n";
  CHECK(Faults(test + "7" + jump, 32, "bra.uni") == 10);
  CHECK(Faults(test + "64" + jump, 32, "") == 0);
  CHECK(Faults(test + "0" + jump, 32, "") == 0);
}

TEST_CASE("the machine: memory has bounds and alignment") {
  CHECK(Faults("  st.global.u32 [%rd2+1024], %r0;\n", 32, "in no allocation") == 10);
  CHECK(Faults("  st.global.u64 [%rd2+4], %rd0;\n", 32, "not aligned") == 10);
  CHECK(Faults("  st.shared.u64 [%r11+4], %rd0;\n", 1, "not aligned") == 10);
  CHECK(Faults("  ld.shared.u32 %r5, [%r11+4096];\n", 32, "of shared memory") == 10);
}

TEST_CASE("the machine: a matrix product is that of its fragments") {
  // All of a is 1, column n of b is n: every sum of 16 is 16 n, to which 0.5 is added.
  const Outcome outcome = RunKernel(
      "  mov.b32 %r4, 0x3f803f80;\n  shr.u32 %r5, %r3, 2;\n  cvt.rn.f32.u32 %f0, %r5;\n"
      "  cvt.rn.bf16x2.f32 %r6, %f0, %f0;\n  mov.f32 %f1, 0f3F000000;\n  mov.f32 %f2, %f1;\n  mov.f32 %f3, %f1;\n"
      "  mov.f32 %f4, %f1;\n"
      "  mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1,%f2,%f3,%f4}, {%r4,%r4,%r4,%r4}, {%r6,%r6}, "
      "{%f1,%f2,%f3,%f4};\n  cvt.rzi.s32.f32 %r7, %f2;\n  st.global.u32 [%rd2], %r7;\n",
      32);
  REQUIRE(outcome.fault.empty());
  for (uint32_t lane = 0; lane < 32; ++lane) CHECK(outcome.memory[lane] == 16 * (lane % 4 * 2 + 1));
}

TEST_CASE("the machine: a seed's order is the same every time, and seeds have different ones") {
  // Warps take numbers.
  const std::string body = "  atom.relaxed.gpu.global.add.u32 %r4, [%rd0], 1;\n  st.global.u32 [%rd2+256], %r4;\n";
  std::vector<std::vector<uint32_t>> orders;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    orders.push_back(RunKernel(body, 64, seed).memory);
    CHECK(orders.back() == RunKernel(body, 64, seed).memory);
  }
  bool differ = false;
  for (const auto& order : orders) differ = differ || order != orders[0];
  CHECK(differ);
}

}  // namespace
}  // namespace eventide::machine

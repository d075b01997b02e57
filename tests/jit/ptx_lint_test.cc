// The rules of tests/support/ptx_lint.h on small texts: that they follow control flow.
#include "tests/support/ptx_lint.h"

#include "tests/support/test.h"

namespace eventide {
namespace {

// A kernel that waits, copies, stores and publishes; the body may put anything in its places.
std::string Kernel(const std::string& after_wait, const std::string& after_stores,
                   const std::string& before_notify = "") {
  return absl::StrCat(
      ".visible .entry eventide_step(\n.param .b64 p)\n.maxntid 384\n{\n"
      "\t.reg .pred %p<4>;\n\tst.global.u32 [%rd1], 0; // the other bank\n\tbar.sync \t0;\n"
      "$L__BB0_1:\n\tld.acquire.gpu.global.u32 %r1, [%rd2];\n\tsetp.lt.u32 %p1, %r1, 4;\n"
      "\t@%p1 bra $L__BB0_1;\n",
      after_wait,
      "$L__copy:\n\tfence.proxy.async.shared::cta;\n"
      "\t{ .reg .b64 t; mbarrier.arrive.expect_tx.shared::cta.b64 t, [%r2], %r3; }\n"
      "\tcp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r4], [%rd3], 16, [%r2];\n"
      "\t// fence.proxy.async.global; in a comment orders nothing\n"
      "\tst.global.v4.f32 [%rd4], {%f1, %f2, %f3, %f4};\n",
      after_stores, "\tbarrier.sync 1, 256;\n", before_notify,
      "$L__notify:\n\tred.release.gpu.global.add.u32 [%rd5], %r6;\n\tret;\n}\n");
}

constexpr char kFence[] = "\tfence.proxy.async.global;\n";

std::vector<std::string> Rules(const std::string& ptx) {
  std::vector<std::string> rules;
  for (const std::string& breach : LintPtx(ptx)) rules.push_back(breach.substr(0, breach.find(':')));
  return rules;
}

TEST_CASE("a kernel with both fences and a barrier breaks no rule") {
  CHECK(Rules(Kernel(kFence, kFence)).empty());
}

TEST_CASE("fences count on every path only") {
  const std::vector<std::string> wait = {
      "a proxy fence after a wait and before the copy of what it guards"};
  CHECK(Rules(Kernel("", kFence)) == wait);
  CHECK(Rules(Kernel("\t@%p2 bra $L__copy;\n" + std::string(kFence), kFence)) == wait);
  CHECK(Rules(Kernel("\t@%p2 fence.proxy.async.global;\n", kFence)) == wait);
  CHECK(Rules(Kernel("\t@%p2 bra $L__a;\n" + std::string(kFence) + "\tbra.uni $L__copy;\n$L__a:\n" +
                         kFence,
                     kFence))
            .empty());
  const std::vector<std::string> stores = {
      "a proxy fence after stores and before they are published"};
  CHECK(Rules(Kernel(kFence, "")) == stores);
  // Another store behind the fence is not covered by it; nor is one in a loop that comes back.
  CHECK(Rules(Kernel(kFence, kFence, "\tst.global.u8 [%rd6], %rs1;\n")) ==
        std::vector<std::string>{"a barrier of the role before it publishes", stores[0]});
  CHECK(Rules(Kernel(kFence, kFence, "\tst.shared.u32 [%r9], %r1;\n\tst.volatile.u32 [%rd9], %r1;\n"))
            .empty());
}

TEST_CASE("stores that are handed to another warp to publish are fenced before that") {
  const std::string hand =
      "\tst.global.u32 [%rd7], %r1;\n" + std::string(kFence) +
      "\tbar.warp.sync -1;\n\t// eventide: hands over\n"
      "\tmbarrier.arrive.shared::cta.b64 %rd8, [%r9];\n";
  CHECK(Rules(Kernel(kFence, kFence + hand)).empty());
  const std::string unfenced =
      "\tst.global.u32 [%rd7], %r1;\n\tbar.warp.sync -1;\n"
      "\t// eventide: hands over\n\tmbarrier.arrive.shared::cta.b64 %rd8, [%r9];\n" +
      std::string(kFence);
  CHECK(Rules(Kernel(kFence, kFence + unfenced)) ==
        std::vector<std::string>{"a proxy fence after stores and before they are published"});
  const std::string alone = "\tst.global.u32 [%rd7], %r1;\n" + std::string(kFence) +
                            "\t// eventide: hands over\n";
  CHECK(Rules(Kernel(kFence, kFence + alone)) ==
        std::vector<std::string>{"a barrier of the warp before one lane hands over"});
}

TEST_CASE("tables of branch targets are followed") {
  const std::string table =
      "$L__table: .branchtargets $L__copy, $L__b;\n\tbrx.idx %r8, $L__table;\n$L__b:\n";
  CHECK(Rules(Kernel(table + kFence, kFence)).size() == 1);
  CHECK(Rules(Kernel(kFence + table, kFence)).empty());
}

TEST_CASE("forms that nobody argued for are refused") {
  const auto with = [](const std::string& instruction) {
    return Rules(Kernel(kFence + ("\t" + instruction + ";\n"), kFence));
  };
  const std::vector<std::string> refused = {"proven forms only"};
  CHECK(with("ld.global.nc.v4.u32 {%r1,%r2,%r3,%r4}, [%rd1]") == refused);
  CHECK(with("ld.global.L1::no_allocate.nc.u32 %r1, [%rd1]") == refused);
  CHECK(with("membar.gl") == refused);
  CHECK(with("fence.sc.sys") == refused);
  CHECK(with("ld.acquire.sys.global.u32 %r1, [%rd1]") == refused);
  CHECK(with("red.release.cta.global.add.u32 [%rd5], 1") == refused);
  CHECK(with("barrier.cluster.arrive.aligned") == refused);
  CHECK(with("griddepcontrol.wait") == refused);
  CHECK(with("ld.global.v4.u32 {%r1,%r2,%r3,%r4}, [%rd1]").empty());
  CHECK(with("atom.shared.add.u32 %r1, [%r2], %r3").empty());
}

TEST_CASE("relaxed additions beyond those of progress, missing waits and notifies are refused") {
  std::string relaxed;
  for (int i = 0; i < kProgressSites; ++i)
    relaxed += "\tred.relaxed.gpu.global.add.u32 [%rd7], 1;\n";
  CHECK(Rules(Kernel(kFence + relaxed, kFence)).empty());
  relaxed += "\tred.relaxed.gpu.global.add.u32 [%rd5], 1;\n";
  CHECK(Rules(Kernel(kFence + relaxed, kFence)) ==
        std::vector<std::string>{"publication is a release at GPU scope"});
  CHECK(Rules(".entry k()\n{\n\tret;\n}\n") ==
        std::vector<std::string>{"publication is a release at GPU scope", "waits acquire at GPU scope"});
}

}  // namespace
}  // namespace eventide

// Graphs that could hang, race, or read what is not there, one line of reason each. Verify must
// refuse every one of them with words that name what is wrong and where. A graph that was ever wrongly
// accepted gets a row in unsound/.
#include <set>

#include "tests/core/unsound/count_cases.h"
#include "tests/core/unsound/name_cases.h"
#include "tests/core/unsound/order_cases.h"
#include "tests/core/unsound/size_cases.h"
#include "tests/support/test.h"

namespace eventide::unsound {
namespace {

std::vector<Case> AllCases() {
  std::vector<Case> all;
  for (auto cases : {WaitCases, BoundsCases, ReadCases, OvertakeCases, OrderCases, NameCases,
                     SizeCases, TargetCases, PublicationCases, FloorCases}) {
    for (Case& one : cases()) all.push_back(std::move(one));
  }
  return all;
}

TEST_CASE("every unsound graph is refused with words that name the fault") {
  std::set<std::string> kinds;
  const std::vector<Case> cases = AllCases();
  for (const Case& one : cases) {
    kinds.insert(one.kind);
    VerifyOptions options;
    options.pool_pages = one.pool_pages;
    const absl::Status status = Verify(one.build(), options);
    INFO(one.kind << ": " << one.name << "\n  " << status.ToString());
    CHECK(!status.ok());
    for (const std::string& word : one.words) {
      INFO("expected: " << word);
      CHECK(status.message().find(word) != absl::string_view::npos);
    }
  }
  CHECK(cases.size() >= 60);
  CHECK(kinds.size() >= 15);
}

// A dispatch whose counts are off by `error`, or a gather to the wrong group.
absl::Status VerifyCounts(int error, bool wrong_group) {
  Base b;
  EventId known = b.g.AddEvents("known", {1}), done = b.g.AddEvents("done", {4});
  TensorId group = b.g.AddPublished("group", {8}, 0, 3, known, {0});
  TensorId counts = b.g.AddPublished("counts", {4}, 0, 9, known, {0});
  b.g.SetCounts(done, counts);
  b.g.Call<Mix0>("groups", {group}, {}, {1}).Notify(known, {0});
  b.g.Call<Mix0>("counts", {counts}, {}, {1}).Notify(known, {0});
  const Expr at = b.g.Load(group, {At(0)});
  b.g.Call<Mix0>("work", {b.Scratch("s", {8})}, {}, {8})
      .Notify(done, {wrong_group ? Max(at - 1, 0) : at});
  b.g.Call<Mix0>("end", {b.Scratch("t", {4})}, {}, {4}).Wait(done, {At(0)});
  VerifyOptions options;
  options.sample_published = [=](const SymbolValues&, uint64_t) -> PublishedValues {
    return [=](int tensor, int64_t element) -> int64_t {
      if (tensor == group.index) return element % 4;
      return element == 3 ? 2 + error : 2;
    };
  };
  return Verify(b.g, options);
}

TEST_CASE("counts that contradict the arrivals are refused") {
  const absl::Status right = VerifyCounts(0, false);
  INFO(right.ToString());
  CHECK(right.ok());
  const absl::Status never = VerifyCounts(1, false);
  INFO(never.ToString());
  CHECK(never.message().find("event done[3]") != absl::string_view::npos);
  CHECK(never.message().find("never fire") != absl::string_view::npos);
  const absl::Status early = VerifyCounts(-1, false);
  INFO(early.ToString());
  CHECK(early.message().find("fires early") != absl::string_view::npos);
  CHECK(early.message().find("from its counts") != absl::string_view::npos);
  CHECK(!VerifyCounts(0, true).ok());
}

}  // namespace
}  // namespace eventide::unsound

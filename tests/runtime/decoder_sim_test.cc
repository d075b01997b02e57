// The real decoder under many schedules: real ops, five to twelve pages a worker, every policy. No
// deadlock and not one bit unlike a single CPU worker's; planted faults show that the campaign sees
// what it looks for.
#include "tests/support/decoder_campaign.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

TEST_CASE("decoders under random schedules never deadlock and give one worker's bits") {
  const DecoderCampaignResult result = RunDecoderCampaign(1, 200, 20);
  INFO(result.first);
  CHECK(result.schedules == 1400);
  CHECK(result.deadlocks == 0);
  CHECK(result.wrong_values == 0);
  CHECK(result.other_errors == 0);
  CHECK(result.refused == 0);
  CHECK(result.split > 60);
}

TEST_CASE("decoders deadlock with one page lane, and when pages are taken before the wait") {
  for (const bool reserve : {false, true}) {
    SimControls controls;
    controls.one_page_lane = true;
    controls.reserve_then_wait = reserve;
    const DecoderCampaignResult result = RunDecoderCampaign(2, 40, 10, controls);
    INFO("reserve " << reserve << ": " << result.deadlocks << " of " << result.schedules);
    CHECK(result.deadlocks > 0);
    CHECK(result.first.find("waits for a page of the") != std::string::npos);
  }
}

// Verify proves that every wait is needed by somebody; here each is taken out after it has.
void CheckLackingWaits(const char* preset, int least) {
  const auto model = MakeDecoderModel({preset, 2, DType::kF32});
  const std::vector<RecordedStep> steps = RecordSteps(model.get(), 70);
  int removed = 0;
  for (size_t g = 0; g < model->program().grids.size(); ++g) {
    const std::string& name = model->program().grids[g].name;
    // Without its wait the embedding would read tables of garbage, and crash rather than differ.
    if (model->program().grids[g].is_gate || name == "embedding") continue;
    for (size_t w = 0; w < model->program().grids[g].waits.size(); ++w) {
      if (name == "route" && w == 1) continue;  // likewise: grouping what nobody has chosen
      Program program = model->program();
      program.grids[g].waits.erase(program.grids[g].waits.begin() + static_cast<long>(w));
      ++removed;
      DecoderCampaignResult result;
      DecoderSetting setting;
      setting.workers = 4;
      for (uint64_t seed = 1; seed < 60 && result.first.empty(); ++seed)
        RunDecoderSetting(model.get(), program, steps, setting, seed * 1000, 4, &result);
      INFO("without a wait of " << name << ": " << result.schedules << " schedules, "
                                << result.first);
      CHECK(result.wrong_values + result.other_errors + result.deadlocks > 0);
    }
  }
  CHECK(removed >= least);
}

TEST_CASE("a decoder that lacks one of its waits is found out, whichever it is") {
  CheckLackingWaits("test-llama", 7);
}

TEST_CASE("so is a mixture of experts") { CheckLackingWaits("test-moe", 10); }

}  // namespace
}  // namespace eventide

// Boxes against the layout that they stand for: what a copy engine would bring, element by element.
#include "runtime/tensor_maps.h"

#include <vector>

#include "device/layout.h"
#include "ops/linear.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

// What the copy engine does with a box that begins at `at`: the first dim runs fastest, zeros outside.
std::vector<uint16_t> CopyBox(const TensorMapShape& shape, const std::vector<uint16_t>& memory, const BoxAt& at) {
  std::vector<uint16_t> page;
  uint32_t count = 1;
  for (const uint32_t n : shape.box) count *= n;
  for (uint32_t element = 0; element < count; ++element) {
    uint64_t rest = element, offset = 0;
    bool inside = true;
    for (int d = 0; d < 5; ++d) {
      const uint64_t index = static_cast<uint64_t>(at.at[d]) + rest % shape.box[d];
      rest /= shape.box[d];
      inside = inside && index < shape.dims[d];
      offset += index * (d == 0 ? 8 : shape.strides[d - 1]);
    }
    for (uint64_t i = 0; i < 4; ++i) page.push_back(inside ? memory[offset / 2 + i] : uint16_t{0});
  }
  return page;
}

TEST_CASE("a box of activations is the page that its pieces would make; what does not exist is zeros") {
  const int k = 8 * 16 * 11, groups = 5, layers = 2;  // 11 steps: pages of 4 and of 2 end early
  const int64_t layer_elements = groups * ActivationGroup(k);
  std::vector<uint16_t> memory(static_cast<size_t>(layers * layer_elements));
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<uint16_t>(1 + i * 7 % 65521);
  const BoxedOperand operand = {0, layers, layer_elements * 2, layer_elements * 2};
  LinearParams params = {};
  params.k = k;
  for (const int box : {Linear::kBox16, Linear::kBox32, Linear::kBox64}) {
    const auto shape = ShapeOf(Linear::BoxOf(params, box, 2), operand);
    REQUIRE(shape.ok());
    const int together = 2 << box, steps = Linear::InputSteps(together, 2);
    for (int layer = 0; layer < layers; ++layer) {
      for (int begin = 0; begin < groups; begin += 2) {
        for (int step = 0; step < SegmentSteps(k); step += steps) {
          const auto page = CopyBox(*shape, memory, {{0, step, begin, 0, layer}});
          REQUIRE(page.size() == kPageBytes / 2);
          bool equal = true;
          for (int g = 0; g < together; ++g) {
            for (int s = 0; s < steps; ++s) {
              for (int i = 0; i < kSegments * 128; ++i) {
                const bool exists = begin + g < groups && step + s < SegmentSteps(k);
                const int64_t at = layer * layer_elements + (begin + g) * ActivationGroup(k) +
                                   (step + s) * kSegments * 128 + i;
                equal = equal && page[static_cast<size_t>((g * steps + s) * kSegments * 128 + i)] ==
                                     (exists ? memory[static_cast<size_t>(at)] : 0);
              }
            }
          }
          CHECK(equal);
        }
      }
    }
  }
}

TEST_CASE("boxes of one segment: of activations, of a pair of row tiles, of one tile") {
  const int k = 8 * 16 * 11, steps = SegmentSteps(k), groups = 11, tiles = 3;
  LinearParams params = {};
  params.k = k;
  params.tile_rows = 32;
  std::vector<uint16_t> memory(static_cast<size_t>(
      std::max<int64_t>(groups * ActivationGroup(k), tiles * PackedTile(params.tile_rows, k))));
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<uint16_t>(1 + i * 7 % 65521);
  const auto value = [&](bool exists, int64_t at) { return exists ? memory[static_cast<size_t>(at)] : uint16_t{0}; };
  {
    const auto shape = ShapeOf(Linear::BoxOf(params, Linear::kBoxSegment, 2), {0, 1, 0, groups * ActivationGroup(k) * 2});
    REQUIRE(shape.ok());
    const int page_steps = kPassSteps;
    for (int step = 0; step < steps; step += page_steps) {
      const auto page = CopyBox(*shape, memory, {{0, 5, step, 4, 0}});
      REQUIRE(page.size() == kPageBytes / 2);
      bool equal = true;
      for (int i = 0; i < static_cast<int>(page.size()); ++i) {
        const int group = i / (page_steps * 128), s = i / 128 % page_steps;
        const bool exists = 4 + group < groups && step + s < steps;
        equal = equal && page[static_cast<size_t>(i)] ==
                             value(exists, (4 + group) * ActivationGroup(k) + ((step + s) * kSegments + 5) * 128 + i % 128);
      }
      CHECK(equal);
    }
  }
  for (const int box : {Linear::kBoxPair, Linear::kBoxTile}) {
    const auto shape = ShapeOf(Linear::BoxOf(params, box, 2), {0, 1, 0, tiles * PackedTile(32, k) * 2});
    REQUIRE(shape.ok());
    const int piece = 2 * kFragment;
    for (int step = 0; step < steps; step += kPassSteps) {
      const auto page = CopyBox(*shape, memory, {{0, 3, step, 1, 0}});
      REQUIRE(page.size() == (box == Linear::kBoxPair ? kPageBytes / 2 : kPageBytes / 4));
      bool equal = true;
      for (int i = 0; i < static_cast<int>(page.size()); ++i) {
        const int tile = i / (piece * kPassSteps), s = i / piece % kPassSteps;
        equal = equal && page[static_cast<size_t>(i)] ==
                             value(step + s < steps, (1 + tile) * PackedTile(32, k) +
                                                         ((step + s) * kSegments + 3) * piece + i % piece);
      }
      CHECK(equal);
    }
  }
}

TEST_CASE("a tensor map's dims are the box's, and what the operand has where the box leaves them open") {
  const TensorBox box = {1, {256, 0, 3, 1}, {2048, 65536, 16}, {256, 2, 3, 1}};
  const auto shape = ShapeOf(box, {0x1000, 7, 1 << 20, 10 * 2048 + 5});
  REQUIRE(shape.ok());
  CHECK(shape->dims[1] == 10);
  CHECK(shape->dims[4] == 7);
  CHECK(shape->strides[3] == 1 << 20);
  const auto one = ShapeOf(box, {0x1000, 1, 0, 4096});
  REQUIRE(one.ok());
  CHECK(one->dims[4] == 1);
  CHECK(one->strides[3] % 16 == 0);
  const auto none = ShapeOf(box, {0x1000, 1, 0, 0});  // a step's tensors may have no elements
  REQUIRE(none.ok());
  CHECK(none->dims[1] == 1);
}

}  // namespace
}  // namespace eventide

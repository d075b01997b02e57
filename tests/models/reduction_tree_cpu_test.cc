// Bits do not depend on the batch because every reduction follows one tree. Here the tree is broken
// on purpose, one reduction at a time, in ways that leave values right to rounding: the comparison
// of bits that decoder_cpu_test.cc makes must notice each of them.
#include <cstring>

#include "ops/linear.h"
#include "ops/paged_attention.h"
#include "runtime/ops.h"
#include "tests/support/decoder_rig.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

enum class Tree { kFixed, kSegments, kRowSums, kAttentionPages };

// CpuLinearTile in plain scalars. The order of segments is the batch's when the tree is broken.
template <Tree kTree, class T, int kTokens>
class ScalarLinearTile {
 public:
  struct Nothing {};
  template <class W>
  ScalarLinearTile(W&, i32 blocks, i32 tokens, bool) : blocks_(blocks), tokens_(tokens) {}
  template <class E>
  i32 RowOf(const E&, i32 first) const {
    return first;
  }
  template <class E>
  Nothing First(const E&, i32) const {
    return {};
  }

  template <class W>
  void Products(W& w, i32 steps, i32 weight_steps, i32 input_steps, i32, bool keeps) {
    std::memset(sums_, 0, sizeof(sums_));
    const T* weights = nullptr;
    std::vector<const T*> input(kTokens / 8);
    for (i32 step = 0; step < steps; ++step) {
      if (step % weight_steps == 0) {
        weights = reinterpret_cast<const T*>(w.Take(kLaneStream).Piece(0));
      }
      if (step % input_steps == 0) {
        const auto page = w.Take(kLaneInput);
        for (i32 g = 0; g * 8 < tokens_; ++g) input[g] = reinterpret_cast<const T*>(page.Piece(g));
      }
      Step(weights + step % weight_steps * kSegments * blocks_ * kFragment, input,
           step % input_steps * kSegments * 128);
      if ((step + 1) % weight_steps == 0 || step + 1 == steps) w.Drop(kLaneStream);
      if (!keeps && ((step + 1) % input_steps == 0 || step + 1 == steps)) w.Drop(kLaneInput);
    }
    if (keeps) w.Again(kLaneInput);
  }

  i32 AtOnce() const { return 1; }
  template <class W, class E>
  void Finish(W&, const E& epilogue, i32 first, Nothing, i32, i32) {
    for (i32 token = 0; token < tokens_; ++token) {
      for (i32 block = 0; block < blocks_; ++block) {
        typename E::Row rows[16];
        float y[16];
        for (i32 row = 0; row < 16; ++row) {
          rows[row] = epilogue.At(first + block * 16 + row);
          y[row] = epilogue.Value(rows[row], token, Total(block * 16 + row, token, tokens_));
        }
        typename E::Carry carry = epilogue.None();
        for (i32 row = 0; row < 16; ++row) {
          carry = epilogue.Combine(carry, epilogue.Emit(rows[row], token, y[row], y[row ^ 8],
                                                        epilogue.Load(rows[row], token)));
        }
        if (epilogue.Carries()) epilogue.Reduced(rows[0], token, carry);
      }
    }
  }

 private:
  float Total(i32 row, i32 token, i32 tokens) const {
    const i32 first = kTree == Tree::kSegments ? tokens % kSegments : 0;
    float total = sums_[first][row][token];
    for (i32 i = 1; i < kSegments; ++i)
      total = Add(total, sums_[(first + i) % kSegments][row][token]);
    return total;
  }

  void Step(const T* weights, const std::vector<const T*>& input, i32 offset) {
    for (i32 segment = 0; segment < kSegments; ++segment) {
      for (i32 token = 0; token < tokens_; ++token) {
        const T* x = input[token / 8] + offset + segment * 128 + token % 8 * 8;
        for (i32 row = 0; row < blocks_ * 16; ++row) {
          float& sum = sums_[segment][row][token];
          const T* fragment = weights + (segment * blocks_ + row / 16) * kFragment;
          for (i32 k = 0; k < 16; ++k) {
            sum = Fma(ToFloat(fragment[k * 16 + row % 16]), ToFloat(x[k / 8 * 64 + k % 8]), sum);
          }
        }
      }
    }
  }

  i32 blocks_, tokens_;
  float sums_[kSegments][32][kTokens] = {};
};

// Pages of large tiles are reduced in two halves.
template <class T>
class HalvingAttentionTile : public HostAttentionTile<T> {
 public:
  using HostAttentionTile<T>::HostAttentionTile;
  template <class P, class Low, class High>
  void Page(const QueryRows<T>& queries, const KvView<T, P>& keys, const KvView<T, P>& values, i32 tokens,
            i32 page_tokens, i32 rows, i32 head_dim, const Low& low, const High& high) {
    using Base = HostAttentionTile<T>;
    const i32 middle = rows > 8 ? 7 : 0;
    const auto to_middle = [&](i32 row) { return Min(high(row), middle); };
    const auto from_middle = [&](i32 row) { return Max(low(row), middle); };
    Base::Page(queries, keys, values, tokens, page_tokens, rows, head_dim, low, to_middle);
    Base::Page(queries, keys, values, tokens, page_tokens, rows, head_dim, from_middle, high);
  }
};

template <Tree kTree>
struct TreeWorker : CpuWorker<kCpuPortable> {
  template <class T, int kTokens>
  using LinearTile = ScalarLinearTile<kTree, T, kTokens>;
  template <class T>
  using AttentionTile = std::conditional_t<kTree == Tree::kAttentionPages, HalvingAttentionTile<T>,
                                           HostAttentionTile<T>>;
  template <class From, class Store>
  void SumsFrom(i32 rows, i32 n, const From& from, const Store& store) {
    RowSums(rows, n, [&](i32 row, i32 i) { return from(row)[i]; }, store);
  }
  template <class Load, class Store>
  void RowSums(i32 rows, i32 n, const Load& load, const Store& store) {
    if (kTree != Tree::kRowSums || rows == 1)
      return CpuWorker<kCpuPortable>::RowSums(rows, n, load, store);
    for (i32 row = 0; row < rows; ++row) {
      float sum = 0;
      for (i32 i = 0; i < n; ++i) sum = Add(sum, load(row, i));
      store(row, sum);
    }
  }
};

template <Tree kTree>
CpuOpTable OpsWith() {
  CpuOpTable table = CpuOps(kCpuPortable);
  using W = TreeWorker<kTree>;
  const int variant = Storage<float>::kVariant;
  table.Add("linear", variant, OpParts<Linear, float, W, CpuWorkerBase>::Functions());
  table.Add("paged_attention", variant,
            OpParts<PagedAttention, float, W, CpuWorkerBase>::Functions());
  return table;
}

struct Logits {
  std::vector<float> alone, among;  // of one sequence's last token
};

// One sequence token by token, and the same at once with a neighbour.
Logits LogitsOf(DecoderModel* model, const CpuOpTable& ops) {
  CpuExecutorOptions options;
  options.workers = 2;
  options.ops = &ops;
  options.placed = model->Placed();
  auto executor = MakeCpuExecutor(model->program(), options);
  REQUIRE(executor.ok());
  DecoderRig rig(model->decoder(), executor->get());
  std::vector<std::vector<int32_t>> prompts(2);
  for (int t = 0; t < 21; ++t) prompts[0].push_back(t * 29 % 257);
  for (int t = 0; t < 9; ++t) prompts[1].push_back(t * 31 % 257);
  Logits logits;
  DecoderOutputs outputs;
  rig.Put(rig.Fresh(prompts));
  for (int t = 0; t < 21; ++t) REQUIRE(rig.Step({{0, 1, 0, kRowSample}}, &outputs).ok());
  logits.alone = outputs.logits;
  rig.Put(rig.Fresh(prompts));
  REQUIRE(rig.Step({{0, 21, 0, kRowSample}, {1, 9, 0, kRowSample}}, &outputs).ok());
  logits.among.assign(outputs.logits.begin(),
                      outputs.logits.begin() + static_cast<long>(logits.alone.size()));
  return logits;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

float MaxDifference(const std::vector<float>& a, const std::vector<float>& b) {
  float most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

TEST_CASE("a reduction whose order is the batch's changes bits, and the comparison notices") {
  DecoderLimits limits;
  limits.max_rows = 2;
  limits.max_tokens = 64;
  limits.max_outputs = 2;
  limits.max_model_len = 64;
  limits.num_blocks = 8;
  ModelConfig config = *PresetConfig("test-llama");
  config.layers = 2;
  DecoderModel model(config, DType::kF32, limits);
  const Logits shipped = LogitsOf(&model, CpuOps(kCpuPortable));
  CHECK(SameBits(shipped.alone, shipped.among));

  // The scalar tile is the shipped one but for speed: what follows breaks the tree and nothing
  // else.
  const Logits fixed = LogitsOf(&model, OpsWith<Tree::kFixed>());
  CHECK(SameBits(fixed.alone, shipped.alone));
  CHECK(SameBits(fixed.among, shipped.among));

  const CpuOpTable broken[] = {OpsWith<Tree::kSegments>(), OpsWith<Tree::kRowSums>(),
                               OpsWith<Tree::kAttentionPages>()};
  for (const CpuOpTable& ops : broken) {
    const Logits logits = LogitsOf(&model, ops);
    const float difference = MaxDifference(logits.alone, logits.among);
    CAPTURE(&ops - broken, 1e6f * difference);
    CHECK_FALSE(SameBits(logits.alone, logits.among));
    CHECK(difference > 0);
    CHECK(difference < 1e-4f);
    CHECK(MaxDifference(logits.alone, shipped.alone) < 1e-4f);
  }
}

}  // namespace
}  // namespace eventide

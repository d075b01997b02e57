// Paged attention against float64, and its bits: the same for any cut of a prompt into steps, any
// company in the batch, any number of parts.
#include "tests/ops/attention_case.h"

namespace eventide {
namespace {

// Sequence 0 arrives whole, sequence 1 in uneven pieces beside it, then both decode.
template <class T>
void CheckAgainstReference(const OpBackend& backend, AttentionShape s, int prompt) {
  INFO(backend.name << ", head_dim " << s.head_dim << ", " << s.kv_heads << " kv heads, group "
                    << s.group << ", window " << s.window << ", prompt " << prompt);
  s.max_positions = prompt + 8;
  s.max_tokens = prompt + 8;
  const AttentionData<T> data(s, static_cast<uint64_t>(prompt * 31 + s.head_dim));
  AttentionCase<T> attention(backend, data);
  const int part = prompt / 3 + 1;
  attention.Step({{1, part}});
  attention.Step({{0, prompt}, {1, 0}});
  attention.Step({{1, std::min(5, prompt)}});
  for (int i = 0; i < 4; ++i) attention.Step({{0, 1}, {1, 1}});
  attention.Step({});
  CHECK(attention.Error() <= 1);
}

TEST_CASE("attention agrees with float64 for odd heads, groups, windows and block sizes") {
  for (const OpBackend& backend : HostBackends()) {
    for (const int prompt : {1, 16, 65}) {
      CheckAgainstReference<BF16>(backend, {.head_dim = 64, .kv_heads = 1, .group = 7}, prompt);
      CheckAgainstReference<BF16>(backend, {.head_dim = 80, .kv_heads = 3, .group = 3}, prompt);
      CheckAgainstReference<F16>(
          backend, {.head_dim = 56, .kv_heads = 2, .group = 1, .block_size = 4, .qk_norm = true},
          prompt);
      CheckAgainstReference<float>(
          backend, {.head_dim = 32, .kv_heads = 1, .group = 3, .window = 20, .qk_norm = true},
          prompt);
    }
    CheckAgainstReference<BF16>(backend,
                                {.head_dim = 8, .kv_heads = 1, .group = 2, .block_size = 1}, 70);
    CheckAgainstReference<BF16>(backend, {.head_dim = 256, .kv_heads = 1, .group = 17}, 20);
    CheckAgainstReference<float>(
        backend, {.head_dim = 256, .kv_heads = 1, .group = 2, .block_size = 64}, 40);
    CheckAgainstReference<BF16>(backend, {.head_dim = 128, .kv_heads = 1, .group = 2, .window = 1},
                                30);
  }
}

template <class T>
typename AttentionCase<T>::Outputs Chunked(const OpBackend& backend, const AttentionData<T>& data,
                                           int length, int chunk) {
  AttentionCase<T> attention(backend, data);
  for (int done = 0; done < length; done += chunk) {
    attention.Step({{0, std::min(chunk, length - done)}});
  }
  return attention.outputs;
}

template <class T>
bool SameBits(const std::vector<std::vector<T>>& a, const std::vector<std::vector<T>>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(T)) != 0) return false;
  }
  return true;
}

template <class T>
void CheckChunks(const AttentionShape& s, int length, const std::vector<int>& chunks) {
  const AttentionData<T> data(s, 7);
  const OpBackend one{"cpu", BestCpuIsa(), 1, "static"};
  const auto whole = Chunked(one, data, length, length);
  for (const int chunk : chunks) {
    INFO("chunk " << chunk << ", window " << s.window);
    CHECK(SameBits(whole[0], Chunked(one, data, length, chunk)[0]));
    CHECK(SameBits(whole[0], Chunked({"cpu", BestCpuIsa(), 5, "static"}, data, length, chunk)[0]));
  }
}

TEST_CASE("attention has the same bits for every chunk of prefill from 1 to whole") {
  std::vector<int> chunks;
  for (int chunk = 1; chunk < 70; ++chunk) chunks.push_back(chunk);
  for (const int window : {0, 33}) {
    AttentionShape s{.head_dim = 16, .kv_heads = 1, .group = 3, .window = window, .block_size = 8};
    s.sequences = 1;
    s.max_positions = s.max_tokens = 70;
    s.qk_norm = window > 0;
    CheckChunks<BF16>(s, 70, chunks);
  }
  AttentionShape s{.head_dim = 32, .kv_heads = 2, .group = 2};
  s.sequences = 1;
  s.max_positions = s.max_tokens = 300;
  CheckChunks<float>(s, 300, {1, 63, 64, 100, 299});
  s.max_positions = s.max_tokens = 1600;  // chunks of 64 and of 256 positions
  s.kv_heads = 1;
  CheckChunks<BF16>(s, 1600, {37, 1023, 1024, 1025});
}

// Decodes a few tokens behind a long context, with as many parts as `workers` want.
template <class T>
typename AttentionCase<T>::Outputs LongDecode(const AttentionData<T>& data, int context,
                                              int workers) {
  AttentionCase<T> attention({"cpu", BestCpuIsa(), workers, "static"}, data);
  attention.Preload(0, context);
  attention.Step({{0, 1}, {1, 30}});
  attention.Step({{1, 1}, {0, 3}});
  return attention.outputs;
}

TEST_CASE("attention of a long context has the same bits split into parts and whole") {
  for (const int window : {0, 3000}) {
    for (const int context : {640, 1023, 5000, 20000}) {
      INFO("window " << window << ", context " << context);
      AttentionShape s{.head_dim = 16, .kv_heads = 1, .group = 2, .window = window};
      s.max_positions = 20010;
      s.max_partials = 0;
      const AttentionData<BF16> data(s, 3);
      s.max_partials = 4096;
      const AttentionData<BF16> split_data(s, 3);
      const auto whole = LongDecode(data, context, 1);
      for (const int workers : {2, 7, 40}) {
        INFO(workers << " workers");
        const auto split = LongDecode(split_data, context, workers);
        CHECK(SameBits(whole[0], split[0]));
        CHECK(SameBits(whole[1], split[1]));
      }
    }
  }
}

}  // namespace
}  // namespace eventide

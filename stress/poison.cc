#include "stress/poison.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>

#include "device/layout.h"

namespace eventide {

PoisonBytes PoisonFor(const Decoder& decoder, const Executor& executor) {
  const Program& program = executor.program();
  const ModelConfig& config = decoder.config;
  const std::map<std::string, int> activations = {{"xa", config.hidden},
                                                  {"xm", config.hidden},
                                                  {"xf", config.hidden},
                                                  {"attn", config.QueryWidth()},
                                                  {"act", config.IsMoe()
                                                              ? config.shared_intermediate
                                                              : config.intermediate},
                                                  {"expert_act", config.moe_intermediate},
                                                  {"exit_inputs", config.hidden}};
  PoisonBytes poison;
  for (size_t t = 0; t < program.tensors.size(); ++t) {
    const TensorDecl& tensor = program.tensors[t];
    const Buffer buffer = executor.TensorBuffer(static_cast<int>(t));
    const bool written_first = tensor.role == TensorRole::kScratch ||
                               tensor.role == TensorRole::kOutput || tensor.name == "partials";
    if (!written_first) continue;
    std::vector<uint8_t> bytes(static_cast<size_t>(buffer.bytes), 0xff);
    if (const auto found = activations.find(tensor.name); found != activations.end()) {
      const int k = found->second;
      const size_t size = DTypeSize(tensor.dtype);
      std::fill(bytes.begin(), bytes.end(), uint8_t{0});
      const int tokens =
          static_cast<int>(bytes.size() / size / static_cast<size_t>(ActivationGroup(k))) * 8;
      for (int token = 0; token < tokens; ++token) {
        for (int i = 0; i < k; ++i) {
          std::memset(bytes.data() + static_cast<size_t>(ActivationIndex(k, token, i)) * size, 0xff,
                      size);
        }
      }
    }
    poison.emplace_back(buffer, std::move(bytes));
  }
  return poison;
}

absl::Status Apply(const PoisonBytes& poison, Executor* executor) {
  for (const auto& [buffer, bytes] : poison) {
    RETURN_IF_ERROR(executor->Write(buffer, 0, bytes.data(), buffer.bytes));
  }
  return absl::OkStatus();
}

}  // namespace eventide

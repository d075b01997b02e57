// SHA-256 (FIPS 180-4): keys and checksums of the cubin cache.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace eventide {

class Sha256 {
 public:
  Sha256();
  void Update(absl::string_view bytes);
  // A text and its length, so that ("ab", "c") and ("a", "bc") differ.
  void UpdateField(absl::string_view bytes);
  // 32 bytes; the object must not be used afterwards.
  std::array<uint8_t, 32> Finish();

  static std::array<uint8_t, 32> Of(absl::string_view bytes);

 private:
  void Block(const uint8_t* block);

  uint32_t state_[8];
  uint8_t pending_[64];
  size_t pending_size_ = 0;
  uint64_t total_ = 0;  // bytes
};

std::string ToHex(const std::array<uint8_t, 32>& digest);

}  // namespace eventide

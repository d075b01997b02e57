#include "serve/blocks.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "core/status.h"

namespace eventide {

absl::StatusOr<BlockPool> BlockPool::Create(uint64_t num_blocks, uint32_t block_size,
                                            BlockId first_id) {
  if (num_blocks == 0)
    return absl::InvalidArgumentError("num_blocks is 0; at least 1 KV block is needed");
  if (block_size == 0)
    return absl::InvalidArgumentError("block_size is 0; it must be at least 1 token");
  // The last id, 2^32 - 1, stays unused, as "no block" for whoever wants it.
  if (num_blocks > std::numeric_limits<BlockId>::max() - uint64_t{first_id}) {
    return absl::InvalidArgumentError(absl::StrCat("num_blocks ", num_blocks, " from id ", first_id,
                                                   " does not fit 32-bit block ids"));
  }
  return BlockPool(num_blocks, block_size, first_id);
}

bool BlockPool::Allocate(uint64_t count, std::vector<BlockId>* out) {
  if (count > free_blocks()) return false;
  out->reserve(out->size() + count);
  for (uint64_t i = 0; i < count; ++i) {
    uint32_t index;
    if (!recycled_.empty()) {
      index = recycled_.back();
      recycled_.pop_back();
      references_[index] = 1;
    } else {
      index = static_cast<uint32_t>(references_.size());
      references_.push_back(1);
    }
    out->push_back(first_id_ + index);
  }
  used_ += count;
  return true;
}

uint32_t BlockPool::references(BlockId id) const {
  uint64_t index = uint64_t{id} - first_id_;  // wraps to a huge value below first_id_
  return index < references_.size() ? references_[index] : 0;
}

absl::Status BlockPool::Share(BlockId id) {
  uint32_t count = references(id);
  if (count == 0)
    return absl::InternalError(absl::StrCat("KV block ", id, " is shared but not in use"));
  if (count == std::numeric_limits<uint32_t>::max()) {
    return absl::ResourceExhaustedError(absl::StrCat("KV block ", id, " has too many references"));
  }
  ++references_[id - first_id_];
  return absl::OkStatus();
}

absl::Status BlockPool::Release(std::span<const BlockId> ids) {
  const size_t recycled_before = recycled_.size();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (references(ids[i]) == 0) {
      for (size_t j = 0; j < i; ++j) ++references_[ids[j] - first_id_];
      used_ += recycled_.size() - recycled_before;
      recycled_.resize(recycled_before);
      return absl::InternalError(absl::StrCat("KV block ", ids[i], " is released but not in use"));
    }
    uint32_t index = ids[i] - first_id_;
    if (--references_[index] != 0) continue;
    recycled_.push_back(index);
    --used_;
  }
  return absl::OkStatus();
}

absl::Status BlockPool::CheckIntegrity() const {
  uint64_t in_use = 0;
  for (uint32_t count : references_) in_use += count != 0;
  if (in_use != used_) {
    return absl::InternalError(absl::StrCat("KV blocks: ", in_use, " have references, but ", used_,
                                            " are counted as used"));
  }
  if (references_.size() != in_use + recycled_.size() || references_.size() > capacity_) {
    return absl::InternalError(absl::StrCat("KV blocks: of ", references_.size(), " ever used, ",
                                            in_use, " are in use and ", recycled_.size(),
                                            " recycled"));
  }
  std::vector<bool> seen(references_.size());
  for (uint32_t index : recycled_) {
    if (index >= references_.size() || references_[index] != 0 || seen[index]) {
      return absl::InternalError(
          absl::StrCat("KV block ", uint64_t{first_id_} + index, " is in the free list wrongly"));
    }
    seen[index] = true;
  }
  return absl::OkStatus();
}

absl::Status BlockPool::CheckIntegrity(std::span<const std::span<const BlockId>> owners) const {
  RETURN_IF_ERROR(CheckIntegrity());
  std::vector<uint32_t> held(references_.size());
  for (std::span<const BlockId> table : owners) {
    for (BlockId id : table) {
      if (references(id) == 0) {
        return absl::InternalError(absl::StrCat("KV block ", id, " is held but not in use"));
      }
      ++held[id - first_id_];
    }
  }
  for (size_t i = 0; i < held.size(); ++i) {
    if (held[i] == references_[i]) continue;
    return absl::InternalError(absl::StrCat("KV block ", first_id_ + i, " has ", references_[i],
                                            " references, but ", held[i], " owners"));
  }
  return absl::OkStatus();
}

}  // namespace eventide

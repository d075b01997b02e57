// The KV blocks: who holds how many, exactly. Blocks are counted, not stored; their memory belongs
// to the runner. Reference counts are there for sharing (a prefix used by several requests). Memory
// and time do not depend on the size of the pool, only on the blocks ever used.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace eventide {

using BlockId = uint32_t;

inline constexpr uint32_t kDefaultBlockSize = 16;  // tokens

class BlockPool {
 public:
  // Ids are first_id … first_id + num_blocks - 1 and must fit in 32 bits.
  static absl::StatusOr<BlockPool> Create(uint64_t num_blocks,
                                          uint32_t block_size = kDefaultBlockSize,
                                          BlockId first_id = 0);

  uint32_t block_size() const { return block_size_; }
  uint64_t capacity() const { return capacity_; }
  uint64_t free_blocks() const { return capacity_ - used_; }
  uint64_t used_blocks() const { return used_; }
  // Blocks that hold `tokens` tokens.
  uint64_t BlocksFor(uint64_t tokens) const { return (tokens + block_size_ - 1) / block_size_; }

  // Appends `count` blocks, each with one reference, to `out`: all or (false) none.
  [[nodiscard]] bool Allocate(uint64_t count, std::vector<BlockId>* out);
  // One more reference to a block in use.
  absl::Status Share(BlockId id);
  // One reference less for each; a block without references is free. A block that is not in use, or
  // more releases than references, changes nothing and is an error.
  absl::Status Release(std::span<const BlockId> ids);
  uint32_t references(BlockId id) const;

  // The pool's own accounts agree with each other.
  absl::Status CheckIntegrity() const;
  // ... and the references are exactly those of `owners` (each owner's table of blocks).
  absl::Status CheckIntegrity(std::span<const std::span<const BlockId>> owners) const;

 private:
  BlockPool(uint64_t num_blocks, uint32_t block_size, BlockId first_id)
      : capacity_(num_blocks), block_size_(block_size), first_id_(first_id) {}

  uint64_t capacity_;
  uint32_t block_size_;
  BlockId first_id_;
  uint64_t used_ = 0;
  std::vector<uint32_t> references_;  // of the blocks ever used; later ones are free
  std::vector<uint32_t> recycled_;    // indices of blocks used before and free now
};

}  // namespace eventide

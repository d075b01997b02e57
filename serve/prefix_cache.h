// Which KV blocks hold which tokens: requests that begin with the same tokens share blocks instead
// of computing them again. Also the one door through which KV blocks are taken and given back,
// since a block that nobody uses may still be worth keeping.
//
// A tree. A node is one full KV block and the tokens it holds; the path from the root spells all
// tokens that its KV depends on. A lookup walks down and compares tokens at every node: a hash only
// says where to look, so that equal hashes of different tokens cost time and never a wrong block.
//
// Accounts. The tree has one reference to each of its blocks, every table of a request one to each
// of its own. A node is idle when the tree's reference is the only one: then it counts as available
// and goes, least recently used first, when nothing is free. What keeps this exact: (I1) A table
// begins with the blocks of a path from the root (`published` of them), and no other block
//      of it is the tree's. So whoever holds a node's block holds those of its ancestors, and what
//      is below an idle node is idle.
// (I2) In the list of idle nodes a node stands before its parent. So the first one is a leaf:
// evicting
//      it leaves no node behind whose prefix is gone, and every idle node can be evicted.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "serve/blocks.h"
#include "serve/request.h"

namespace eventide {

struct PrefixCacheOptions {
  bool enabled = true;      // false: nothing is kept, nothing is found
  uint32_t hash_bits = 64;  // of 1 to 64; fewer make lookups collide, for tests
};

// A request's KV blocks, by position.
struct KvTable {
  std::vector<BlockId> blocks;
  uint64_t published = 0;  // of these, the first so many are the tree's
  // The tree knows the next tokens by another block. This table's own stays private to it, so that
  // a running request never keeps two blocks for the same positions from being evicted.
  bool diverged = false;
};

// What a lookup found, and where it goes on when the tree or the sequence has grown.
struct PrefixMatch {
  uint64_t blocks = 0;  // full blocks at the sequence's start
  uint32_t node = 0;    // the last one's; 0: the root
  uint64_t serial = 0;  // a node that was evicted since has another one
};

class PrefixCache {
 public:
  PrefixCache(BlockPool pool, PrefixCacheOptions options);

  uint32_t block_size() const { return pool_.block_size(); }
  uint64_t capacity() const { return pool_.capacity(); }
  // Free or idle: what Allocate can give.
  uint64_t available_blocks() const { return pool_.free_blocks() + idle_; }
  uint64_t held_blocks() const { return capacity() - available_blocks(); }  // in some table
  uint64_t idle_blocks() const { return idle_; }
  uint64_t cached_blocks() const { return node_of_.size(); }  // held or idle
  uint64_t evictions() const { return evictions_; }

  // The longest known chain of full blocks, at most `most_blocks`, that hold the first `tokens`.
  // `match` is a fresh one or what was found before for the same sequence.
  void Find(std::span<const TokenId> tokens, uint64_t most_blocks, PrefixMatch* match) const;
  // Of a match that Find has just made: the blocks that would no longer be available once shared.
  uint64_t IdleBlocks(const PrefixMatch& match) const;
  // A hash of what follows a match, or a table's published blocks, in `tokens`: the next full
  // block, behind what precedes it. Equal for two sequences that would publish, or find, the same
  // block next.
  uint64_t NextKey(const PrefixMatch& match, std::span<const TokenId> tokens) const;
  uint64_t NextKey(const KvTable& table, std::span<const TokenId> tokens) const;
  // Begins an empty table with the blocks of a match; nothing was allocated since Find.
  void Share(const PrefixMatch& match, KvTable* table);

  // Appends `count` blocks, evicting idle ones where none is free: all or (false) none.
  [[nodiscard]] bool Allocate(uint64_t count, KvTable* table);
  // The table's KV of `tokens` is final (its steps have retired): full blocks can be found from now
  // on.
  void Publish(std::span<const TokenId> tokens, KvTable* table);
  // Publishes, then gives all blocks back. The table is empty afterwards.
  void Release(std::span<const TokenId> tokens, KvTable* table);
  // Blocks that would not become available by releasing this table alone: other tables hold them.
  uint64_t SharedBlocks(const KvTable& table) const;
  // Forgets every idle block.
  void Clear();

  // All of the above holds, and the references are exactly those of the tree and of `tables`.
  absl::Status CheckIntegrity(std::span<const KvTable* const> tables) const;

 private:
  static constexpr uint32_t kRoot = 0;
  static constexpr uint32_t kNone = 0xffffffff;

  struct Node {
    BlockId block = 0;
    uint32_t parent = kNone;
    uint32_t children = 0;
    uint32_t next_alike = kNone;  // another node of the same hash
    uint64_t hash = 0;            // of parent's hash and own tokens
    uint64_t serial = 0;
    uint32_t older = kNone, newer = kNone;  // in the list of idle nodes
    bool idle = false;
  };

  std::span<const TokenId> TokensOf(uint32_t node) const {
    return std::span(tokens_).subspan(uint64_t{node} * block_size(), block_size());
  }
  std::span<const TokenId> BlockTokens(std::span<const TokenId> tokens, uint64_t block) const {
    return tokens.subspan(block * block_size(), block_size());
  }
  uint64_t KeyBehind(uint32_t node, std::span<const TokenId> block) const;
  uint64_t HashOf(uint32_t parent, std::span<const TokenId> tokens) const;
  uint32_t FindChild(uint32_t parent, std::span<const TokenId> tokens) const;
  uint32_t AddChild(uint32_t parent, std::span<const TokenId> tokens, BlockId block);
  // The node of the last published block, or the root.
  uint32_t Tip(const KvTable& table) const;
  void ListAsNewest(uint32_t node);
  void Unlist(uint32_t node);
  void EvictOldest();
  absl::Status CheckNodes() const;
  absl::Status CheckIdleList() const;
  absl::Status CheckTable(const KvTable& table) const;

  BlockPool pool_;
  PrefixCacheOptions options_;
  uint64_t hash_mask_;
  std::vector<Node> nodes_;      // [kRoot] is the root
  std::vector<TokenId> tokens_;  // [node][block_size]
  std::vector<uint32_t> unused_nodes_;
  absl::flat_hash_map<uint64_t, uint32_t> first_of_hash_;
  absl::flat_hash_map<BlockId, uint32_t> node_of_;
  uint32_t oldest_ = kNone, newest_ = kNone;  // idle
  uint64_t idle_ = 0;
  uint64_t next_serial_ = 1;
  uint64_t evictions_ = 0;
};

}  // namespace eventide

#include "serve/prefix_cache.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "serve/hash.h"

namespace eventide {

PrefixCache::PrefixCache(BlockPool pool, PrefixCacheOptions options)
    : pool_(std::move(pool)),
      options_(options),
      hash_mask_(~uint64_t{0} >> (64 - std::clamp(options.hash_bits, 1u, 64u))),
      nodes_(1),
      tokens_(pool_.block_size()) {}

uint64_t PrefixCache::HashOf(uint32_t parent, std::span<const TokenId> tokens) const {
  uint64_t hash = nodes_[parent].hash;
  for (TokenId token : tokens) hash = CombineHash(hash, static_cast<uint64_t>(token));
  return hash & hash_mask_;
}

uint32_t PrefixCache::FindChild(uint32_t parent, std::span<const TokenId> tokens) const {
  auto it = first_of_hash_.find(HashOf(parent, tokens));
  if (it == first_of_hash_.end()) return kNone;
  for (uint32_t node = it->second; node != kNone; node = nodes_[node].next_alike) {
    if (nodes_[node].parent == parent && std::ranges::equal(TokensOf(node), tokens)) return node;
  }
  return kNone;
}

uint32_t PrefixCache::AddChild(uint32_t parent, std::span<const TokenId> tokens, BlockId block) {
  uint32_t index = static_cast<uint32_t>(nodes_.size());
  if (unused_nodes_.empty()) {
    nodes_.emplace_back();
    tokens_.resize(tokens_.size() + block_size());
  } else {
    index = unused_nodes_.back();
    unused_nodes_.pop_back();
  }
  Node& node = nodes_[index];
  node = {
      .block = block, .parent = parent, .hash = HashOf(parent, tokens), .serial = next_serial_++};
  std::ranges::copy(tokens, tokens_.begin() + static_cast<std::ptrdiff_t>(index) * block_size());
  auto [first, is_new] = first_of_hash_.try_emplace(node.hash, index);
  if (!is_new) node.next_alike = std::exchange(first->second, index);
  EVT_CHECK(node_of_.try_emplace(block, index).second);
  EVT_CHECK(pool_.Share(block).ok());
  ++nodes_[parent].children;
  return index;
}

uint32_t PrefixCache::Tip(const KvTable& table) const {
  return table.published == 0 ? kRoot : node_of_.at(table.blocks[table.published - 1]);
}

void PrefixCache::Find(std::span<const TokenId> tokens, uint64_t most_blocks,
                       PrefixMatch* match) const {
  if (!options_.enabled) return;
  if (match->node >= nodes_.size() || nodes_[match->node].serial != match->serial) *match = {};
  const uint64_t most = std::min<uint64_t>(most_blocks, tokens.size() / block_size());
  while (match->blocks < most) {
    const uint32_t child = FindChild(match->node, BlockTokens(tokens, match->blocks));
    if (child == kNone) return;
    *match = {match->blocks + 1, child, nodes_[child].serial};
  }
}

uint64_t PrefixCache::IdleBlocks(const PrefixMatch& match) const {
  uint64_t idle = 0;
  for (uint32_t node = match.node; nodes_[node].idle; node = nodes_[node].parent) ++idle;
  return idle;
}

uint64_t PrefixCache::KeyBehind(uint32_t node, std::span<const TokenId> block) const {
  uint64_t key = nodes_[node].serial;  // no other node ever has it
  for (TokenId token : block) key = CombineHash(key, static_cast<uint64_t>(token));
  return key;
}

uint64_t PrefixCache::NextKey(const PrefixMatch& match, std::span<const TokenId> tokens) const {
  return KeyBehind(match.node, BlockTokens(tokens, match.blocks));
}

uint64_t PrefixCache::NextKey(const KvTable& table, std::span<const TokenId> tokens) const {
  return KeyBehind(Tip(table), BlockTokens(tokens, table.published));
}

void PrefixCache::Share(const PrefixMatch& match, KvTable* table) {
  EVT_CHECK(table->blocks.empty() && nodes_[match.node].serial == match.serial);
  table->blocks.resize(match.blocks);
  table->published = match.blocks;
  uint32_t node = match.node;
  for (uint64_t i = match.blocks; i-- > 0; node = nodes_[node].parent) {
    table->blocks[i] = nodes_[node].block;
    EVT_CHECK(pool_.Share(nodes_[node].block).ok());
    if (nodes_[node].idle) Unlist(node);
  }
  EVT_CHECK(node == kRoot);
}

bool PrefixCache::Allocate(uint64_t count, KvTable* table) {
  if (count > available_blocks()) return false;
  while (pool_.free_blocks() < count) EvictOldest();
  return pool_.Allocate(count, &table->blocks);
}

void PrefixCache::Publish(std::span<const TokenId> tokens, KvTable* table) {
  const uint64_t full = tokens.size() / block_size();
  if (!options_.enabled || table->diverged || full <= table->published) return;
  uint32_t node = Tip(*table);
  for (; table->published < full; ++table->published) {
    const std::span<const TokenId> block = BlockTokens(tokens, table->published);
    table->diverged = FindChild(node, block) != kNone;
    if (table->diverged) return;
    node = AddChild(node, block, table->blocks[table->published]);
  }
}

void PrefixCache::Release(std::span<const TokenId> tokens, KvTable* table) {
  uint32_t node = Tip(*table);
  const uint64_t full = options_.enabled ? tokens.size() / block_size() : 0;
  EVT_CHECK(full <= table->blocks.size());
  for (uint64_t i = table->published; i < full; ++i) {
    const std::span<const TokenId> block = BlockTokens(tokens, i);
    const uint32_t child = FindChild(node, block);
    node = child != kNone ? child : AddChild(node, block, table->blocks[i]);
  }
  EVT_CHECK(pool_.Release(table->blocks).ok());
  *table = {};
  // Every node that lost a reference is on this path, and its ancestors count as used now too: from
  // the leaf up, so that a node stands before its parent (I2). Above a node in use all are (I1).
  for (; node != kRoot && pool_.references(nodes_[node].block) == 1; node = nodes_[node].parent) {
    if (nodes_[node].idle) Unlist(node);
    ListAsNewest(node);
  }
}

uint64_t PrefixCache::SharedBlocks(const KvTable& table) const {
  // References do not grow along a path (I1): a search finds where this table becomes the only one.
  const auto published = std::span(table.blocks).first(table.published);
  const auto own =
      std::ranges::partition_point(published, [&](BlockId id) { return pool_.references(id) > 2; });
  return static_cast<uint64_t>(own - published.begin());
}

void PrefixCache::Clear() {
  while (oldest_ != kNone) EvictOldest();
}

void PrefixCache::ListAsNewest(uint32_t index) {
  Node& node = nodes_[index];
  node.idle = true;
  node.older = newest_;
  node.newer = kNone;
  (newest_ == kNone ? oldest_ : nodes_[newest_].newer) = index;
  newest_ = index;
  ++idle_;
}

void PrefixCache::Unlist(uint32_t index) {
  Node& node = nodes_[index];
  (node.older == kNone ? oldest_ : nodes_[node.older].newer) = node.newer;
  (node.newer == kNone ? newest_ : nodes_[node.newer].older) = node.older;
  node.idle = false;
  --idle_;
}

void PrefixCache::EvictOldest() {
  const uint32_t index = oldest_;
  EVT_CHECK(index != kNone && nodes_[index].children == 0);
  Unlist(index);
  Node& node = nodes_[index];
  auto first = first_of_hash_.find(node.hash);
  uint32_t* link = &first->second;
  while (*link != index) link = &nodes_[*link].next_alike;
  *link = node.next_alike;
  if (first->second == kNone) first_of_hash_.erase(first);
  node_of_.erase(node.block);
  EVT_CHECK(pool_.Release({&node.block, 1}).ok());
  --nodes_[node.parent].children;
  node.serial = next_serial_++;  // what was found there before is stale
  unused_nodes_.push_back(index);
  ++evictions_;
}

absl::Status PrefixCache::CheckNodes() const {
  std::vector<uint32_t> children(nodes_.size());
  for (const auto& [block, index] : node_of_) {
    const Node& node = nodes_[index];
    if (node.block != block || FindChild(node.parent, TokensOf(index)) != index) {
      return absl::InternalError(
          absl::StrCat("KV block ", block, " cannot be found by its tokens"));
    }
    ++children[node.parent];
    const uint32_t references = pool_.references(block);
    const bool above_idle = node.parent != kRoot && nodes_[node.parent].idle;
    if (node.idle != (references == 1) || (above_idle && !node.idle)) {
      return absl::InternalError(absl::StrCat(
          "KV block ", block, " with ", references, " references is ", node.idle ? "" : "not ",
          "listed as idle, its parent is ", above_idle ? "" : "not"));
    }
  }
  for (uint32_t unused : unused_nodes_) children[unused] += nodes_[unused].children;
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    if (children[i] == nodes_[i].children) continue;
    return absl::InternalError(absl::StrCat("node ", i, " of the prefix tree has ", children[i],
                                            " children, not ", nodes_[i].children));
  }
  if (nodes_.size() != 1 + node_of_.size() + unused_nodes_.size()) {
    return absl::InternalError("nodes of the prefix tree are lost");
  }
  return absl::OkStatus();
}

absl::Status PrefixCache::CheckIdleList() const {
  uint64_t listed = 0;
  std::vector<bool> seen(nodes_.size());
  for (uint32_t i = oldest_; i != kNone; i = nodes_[i].newer) {
    if (!nodes_[i].idle || seen[i] || seen[nodes_[i].parent]) {
      return absl::InternalError(
          absl::StrCat("KV block ", nodes_[i].block, " is listed twice or behind its parent"));
    }
    seen[i] = true;
    ++listed;
  }
  if (listed == idle_) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(listed, " KV blocks are idle, ", idle_, " are counted"));
}

absl::Status PrefixCache::CheckTable(const KvTable& table) const {
  uint32_t parent = kRoot;
  for (uint64_t i = 0; i < table.blocks.size(); ++i) {
    auto it = node_of_.find(table.blocks[i]);
    const bool found = it != node_of_.end();
    if (found != (i < table.published) || (found && nodes_[it->second].parent != parent)) {
      return absl::InternalError(absl::StrCat("KV block ", table.blocks[i], " at ", i,
                                              " of a table, ", table.published, " published, is ",
                                              found ? "another path's" : "not the prefix tree's"));
    }
    if (found) parent = it->second;
  }
  return absl::OkStatus();
}

absl::Status PrefixCache::CheckIntegrity(std::span<const KvTable* const> tables) const {
  std::vector<BlockId> tree;
  for (const auto& [block, index] : node_of_) tree.push_back(block);
  std::vector<std::span<const BlockId>> owners = {tree};
  for (const KvTable* table : tables) {
    RETURN_IF_ERROR(CheckTable(*table));
    owners.push_back(table->blocks);
  }
  RETURN_IF_ERROR(pool_.CheckIntegrity(owners));
  RETURN_IF_ERROR(CheckNodes());
  return CheckIdleList();
}

}  // namespace eventide

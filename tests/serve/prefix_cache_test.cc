#include "serve/prefix_cache.h"

#include <map>
#include <random>
#include <set>

#include "tests/support/test.h"

namespace eventide {
namespace {

using Tokens = std::vector<TokenId>;

PrefixCache Cache(uint64_t blocks, uint32_t block_size, PrefixCacheOptions options = {}) {
  auto pool = BlockPool::Create(blocks, block_size);
  REQUIRE(pool.ok());
  return PrefixCache(*std::move(pool), options);
}

uint64_t Found(const PrefixCache& cache, const Tokens& tokens) {
  PrefixMatch match;
  cache.Find(tokens, 1000, &match);
  return match.blocks;
}

// As a request does: what is known, then fresh blocks for the rest.
KvTable Take(PrefixCache* cache, const Tokens& tokens) {
  PrefixMatch match;
  KvTable table;
  cache->Find(tokens, 1000, &match);
  cache->Share(match, &table);
  const uint64_t size = cache->block_size(), blocks = (tokens.size() + size - 1) / size;
  REQUIRE(cache->Allocate(blocks - match.blocks, &table));
  return table;
}

void Check(const PrefixCache& cache, std::vector<const KvTable*> tables) {
  const absl::Status status = cache.CheckIntegrity(tables);
  INFO(status);
  REQUIRE(status.ok());
}

TEST_CASE("Full blocks are found once published, by all their tokens, and partial ones never") {
  PrefixCache cache = Cache(10, 4);
  const Tokens tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  KvTable a = Take(&cache, tokens);
  CHECK(Found(cache, tokens) == 0);
  cache.Publish(std::span(tokens).first(7), &a);
  CHECK(Found(cache, tokens) == 1);
  cache.Publish(tokens, &a);
  CHECK(Found(cache, tokens) == 2);
  CHECK(Found(cache, {1, 2, 3, 4, 5, 6, 7, 9}) == 1);
  CHECK(Found(cache, {0, 2, 3, 4, 5, 6, 7, 8}) == 0);
  CHECK(Found(cache, {5, 6, 7, 8}) == 0);  // the second block's tokens, without what precedes them
  PrefixMatch most;
  cache.Find(tokens, 1, &most);
  CHECK(most.blocks == 1);
  KvTable b = Take(&cache, {1, 2, 3, 4, 5, 6, 7, 8, 1, 1, 1, 1});
  CHECK(std::equal(b.blocks.begin(), b.blocks.begin() + 2, a.blocks.begin()));
  CHECK(cache.held_blocks() == 4);
  CHECK(cache.SharedBlocks(a) == 2);
  Check(cache, {&a, &b});
  cache.Release(tokens, &a);
  CHECK(cache.held_blocks() == 3);
  CHECK(cache.idle_blocks() == 0);
  CHECK(cache.SharedBlocks(b) == 0);
  cache.Release({}, &b);
  CHECK(cache.held_blocks() == 0);
  CHECK(cache.idle_blocks() == 2);
  CHECK(cache.available_blocks() == 10);
  Check(cache, {});
}

TEST_CASE("Ids that differ by 256 are different tokens, whatever the hash") {
  for (uint32_t bits : {1u, 8u, 64u}) {
    PrefixCache cache = Cache(10, 4, {.hash_bits = bits});
    const Tokens a = {65, 66, 67, 68}, b = {321, 66, 67, 68};
    KvTable table = Take(&cache, a);
    cache.Release(a, &table);
    CHECK(Found(cache, a) == 1);
    CHECK(Found(cache, b) == 0);
    CHECK(Found(cache, {65, 66, 67, 324}) == 0);
    CHECK(Found(cache, {65 + (1 << 16), 66, 67, 68}) == 0);
    CHECK(Found(cache, {65 + (1 << 24), 66, 67, 68}) == 0);
  }
}

TEST_CASE("With one bit of hash nearly every lookup meets other tokens and none is fooled") {
  PrefixCache cache = Cache(300, 2, {.hash_bits = 1});
  std::mt19937_64 random(1);
  std::set<Tokens> known;
  for (int i = 0; i < 100; ++i) {
    const Tokens tokens = {static_cast<TokenId>(random() % 500), 7};
    if (!known.insert(tokens).second) continue;
    REQUIRE(Found(cache, tokens) == 0);
    KvTable table = Take(&cache, tokens);
    cache.Release(tokens, &table);
  }
  for (TokenId t = 0; t < 500; ++t) REQUIRE(Found(cache, {t, 7}) == known.count({t, 7}));
  CHECK(known.size() > 80);
  Check(cache, {});
}

TEST_CASE("In a pool of two blocks two prompts evict each other and neither finds the other's") {
  PrefixCache cache = Cache(2, 4);
  const Tokens a = {1, 2, 3, 4, 5, 6, 7, 8}, b = {9, 2, 3, 4, 5, 6, 7, 8};
  for (int round = 0; round < 20; ++round) {
    const Tokens& own = round % 2 ? b : a;
    const Tokens& other = round % 2 ? a : b;
    REQUIRE(Found(cache, own) == 0);
    REQUIRE(Found(cache, other) == (round == 0 ? 0 : 2));
    KvTable table = Take(&cache, own);
    REQUIRE(Found(cache, other) == 0);
    Check(cache, {&table});
    cache.Release(own, &table);
  }
  CHECK(cache.evictions() == 38);
}

TEST_CASE("A remembered lookup goes on where it was and notices that its block was evicted") {
  PrefixCache cache = Cache(3, 2);
  const Tokens tokens = {1, 2, 3, 4, 5, 6};
  KvTable table = Take(&cache, tokens);
  cache.Publish(std::span(tokens).first(2), &table);
  PrefixMatch match;
  cache.Find(tokens, 3, &match);
  CHECK(match.blocks == 1);
  cache.Release(std::span(tokens).first(4), &table);
  cache.Find(tokens, 3, &match);
  CHECK(match.blocks == 2);
  CHECK(cache.IdleBlocks(match) == 2);
  // Others take two blocks: the free one and the older of the idle ones, which is the deeper.
  KvTable other;
  REQUIRE(cache.Allocate(2, &other));
  CHECK(Found(cache, tokens) == 1);
  cache.Find(tokens, 3, &match);
  CHECK(match.blocks == 1);
  // Its node is reused for other tokens: still not the same.
  REQUIRE(cache.Allocate(1, &other));
  const Tokens third = {8, 8, 8, 8, 8, 8};
  cache.Release(third, &other);
  cache.Find(tokens, 3, &match);
  CHECK(match.blocks == 0);
  CHECK(Found(cache, third) == 3);
}

TEST_CASE("Equal blocks computed twice are kept once") {
  PrefixCache cache = Cache(8, 2);
  const Tokens tokens = {1, 2, 3, 4, 5, 6};
  KvTable a = Take(&cache, tokens), b = Take(&cache, tokens);
  cache.Publish(std::span(tokens).first(2), &a);
  cache.Publish(tokens,
                &b);  // its first block is not the one that is known: none of it is published
  CHECK(b.diverged);
  CHECK(cache.cached_blocks() == 1);
  Check(cache, {&a, &b});
  cache.Release(tokens, &b);  // but goes behind a's block when b leaves
  CHECK(cache.cached_blocks() == 3);
  CHECK(cache.idle_blocks() == 2);
  Check(cache, {&a});
  cache.Release(tokens, &a);
  CHECK(cache.cached_blocks() == 3);
  CHECK(cache.available_blocks() == 8);
  Check(cache, {});
}

TEST_CASE("A cache that is off keeps and finds nothing") {
  PrefixCache cache = Cache(8, 2, {.enabled = false});
  const Tokens tokens = {1, 2, 3, 4};
  KvTable table = Take(&cache, tokens);
  cache.Publish(tokens, &table);
  cache.Release(tokens, &table);
  CHECK(cache.cached_blocks() == 0);
  CHECK(Found(cache, tokens) == 0);
  Check(cache, {});
}

TEST_CASE("Wrong accounts are noticed") {
  PrefixCache cache = Cache(8, 2);
  const Tokens tokens = {1, 2, 3, 4};
  KvTable a = Take(&cache, tokens), none;
  cache.Publish(tokens, &a);
  const auto wrong = [&](const KvTable& table) {
    const std::vector<const KvTable*> tables = {&table};
    return !cache.CheckIntegrity(tables).ok();
  };
  CHECK_FALSE(wrong(a));
  CHECK(wrong(none));  // the references of `a` have no owner
  KvTable changed = a;
  changed.published = 1;
  CHECK(wrong(changed));
  changed = a;
  std::swap(changed.blocks[0], changed.blocks[1]);
  CHECK(wrong(changed));
  changed = a;
  changed.blocks.push_back(7);
  CHECK(wrong(changed));
}

// What the cache promises, as plainly as possible: every known prefix is written out in full.
class NaiveCache {
 public:
  NaiveCache(uint64_t capacity, uint32_t size) : capacity_(capacity), size_(size) {}

  struct Table {
    Tokens tokens;  // what its positions are meant to hold
    std::vector<uint64_t> blocks;
    uint64_t published = 0;
    bool diverged = false;
  };

  uint64_t Find(const Tokens& tokens) const {
    uint64_t blocks = 0;
    while (Prefix(tokens, blocks + 1) && known_.contains(*Prefix(tokens, blocks + 1))) ++blocks;
    return blocks;
  }
  Table Share(const Tokens& tokens) {
    Table table;
    table.tokens = tokens;
    table.published = Find(tokens);
    for (uint64_t i = 1; i <= table.published; ++i) {
      table.blocks.push_back(known_.at(*Prefix(tokens, i)).block);
      ++tables_[table.blocks.back()];
    }
    return table;
  }
  bool Allocate(uint64_t count, Table* table) {
    if (count > Available()) return false;
    while (capacity_ - Used() < count) {
      auto oldest = known_.end();
      for (auto it = known_.begin(); it != known_.end(); ++it) {
        if (tables_[it->second.block] == 0 &&
            (oldest == known_.end() || it->second.used < oldest->second.used)) {
          oldest = it;
        }
      }
      known_.erase(oldest);
    }
    for (uint64_t i = 0; i < count; ++i) {
      table->blocks.push_back(next_block_++);
      tables_[table->blocks.back()] = 1;
    }
    return true;
  }
  void Publish(uint64_t tokens, Table* table) {
    for (; table->published < tokens / size_ && !table->diverged; ++table->published) {
      if (!Learn(*table, table->published)) {
        table->diverged = true;
        return;
      }
    }
  }
  void Release(uint64_t tokens, Table* table) {
    uint64_t depth = std::max(tokens / size_, table->published);
    for (uint64_t i = table->published; i < depth; ++i) Learn(*table, i);
    for (uint64_t block : table->blocks) --tables_[block];
    for (; depth > 0; --depth) known_.at(*Prefix(table->tokens, depth)).used = ++clock_;
    *table = {};
  }
  uint64_t Idle() const {
    return static_cast<uint64_t>(std::ranges::count_if(
        known_, [&](const auto& entry) { return tables_.at(entry.second.block) == 0; }));
  }
  uint64_t Available() const { return capacity_ - Used() + Idle(); }
  const auto& known() const { return known_; }

 private:
  struct Known {
    uint64_t block = 0;  // blocks are numbered as they are allocated and never reused
    uint64_t used = 0;
  };
  std::optional<Tokens> Prefix(const Tokens& tokens, uint64_t blocks) const {
    if (blocks * size_ > tokens.size()) return std::nullopt;
    return Tokens(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(blocks * size_));
  }
  bool Learn(const Table& table, uint64_t i) {
    return known_.try_emplace(*Prefix(table.tokens, i + 1), Known{table.blocks[i], 0}).second;
  }
  uint64_t Used() const {
    std::set<uint64_t> used;
    for (const auto& [block, count] : tables_) {
      if (count > 0) used.insert(block);
    }
    for (const auto& [prefix, entry] : known_) used.insert(entry.block);
    return used.size();
  }
  uint64_t capacity_;
  uint32_t size_;
  std::map<Tokens, Known> known_;
  std::map<uint64_t, int> tables_;  // how many hold a block
  uint64_t clock_ = 0, next_block_ = 0;
};

struct Fuzz {
  uint64_t shared = 0, evicted = 0, diverged = 0, refused = 0;
};

void Compare(const PrefixCache& cache, const NaiveCache& naive, uint32_t size) {
  REQUIRE(cache.available_blocks() == naive.Available());
  REQUIRE(cache.idle_blocks() == naive.Idle());
  // As many, and every one is found: the same set, so each eviction chose the same block.
  REQUIRE(cache.cached_blocks() == naive.known().size());
  for (const auto& [prefix, entry] : naive.known())
    REQUIRE(Found(cache, prefix) == prefix.size() / size);
}

void RandomOperations(uint64_t seed, Fuzz* tally) {
  std::mt19937_64 random(seed);
  const uint32_t size = static_cast<uint32_t>(1 + random() % 3);
  const uint64_t capacity = 1 + random() % 24, letters = 1 + random() % 3;
  PrefixCache cache = Cache(capacity, size, {.hash_bits = random() % 2 ? 1u : 64u});
  NaiveCache naive(capacity, size);
  struct Both {
    KvTable real;
    NaiveCache::Table plain;
  };
  std::vector<Both> tables;
  std::map<BlockId, uint64_t> same;  // a real block of some table: its number in the model
  for (int step = 0; step < 120; ++step) {
    const uint64_t choice = random() % 8;
    const size_t at = tables.empty() ? 0 : random() % tables.size();
    if (choice < 4) {
      Tokens tokens(1 + random() % 20);
      for (TokenId& token : tokens) token = static_cast<TokenId>(random() % letters * 256);
      PrefixMatch match;
      cache.Find(tokens, 1000, &match);
      REQUIRE(match.blocks == naive.Find(tokens));
      Both both;
      both.plain = naive.Share(tokens);
      cache.Share(match, &both.real);
      tally->shared += match.blocks;
      const uint64_t rest = (tokens.size() + size - 1) / size - match.blocks;
      const bool fits = naive.Allocate(rest, &both.plain);
      REQUIRE(cache.Allocate(rest, &both.real) == fits);
      tally->refused += !fits;
      tables.push_back(std::move(both));
      if (!fits) {  // as a request whose admission failed
        naive.Release(0, &tables.back().plain);
        cache.Release({}, &tables.back().real);
        tables.pop_back();
      }
    } else if (!tables.empty() && choice < 6) {
      Both& both = tables[at];
      const uint64_t final = random() % (both.plain.tokens.size() + 1);
      naive.Publish(final, &both.plain);
      cache.Publish(std::span(both.plain.tokens).first(final), &both.real);
      tally->diverged += both.real.diverged;
    } else if (!tables.empty()) {
      Both& both = tables[at];
      const uint64_t final = random() % (both.plain.tokens.size() + 1);
      const Tokens tokens(both.plain.tokens.begin(),
                          both.plain.tokens.begin() + static_cast<std::ptrdiff_t>(final));
      naive.Release(final, &both.plain);
      cache.Release(tokens, &both.real);
      tables.erase(tables.begin() + static_cast<std::ptrdiff_t>(at));
    }
    std::vector<const KvTable*> real;
    same.clear();
    for (const Both& both : tables) {
      real.push_back(&both.real);
      REQUIRE(both.real.published == both.plain.published);
      REQUIRE(both.real.blocks.size() == both.plain.blocks.size());
      for (size_t i = 0; i < both.real.blocks.size(); ++i) {
        REQUIRE(same.try_emplace(both.real.blocks[i], both.plain.blocks[i]).first->second ==
                both.plain.blocks[i]);
      }
    }
    Check(cache, real);
    Compare(cache, naive, size);
  }
  tally->evicted += cache.evictions();
}

TEST_CASE("Random operations agree with a cache that writes every prefix out in full") {
  Fuzz tally;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    INFO(seed);
    RandomOperations(seed, &tally);
  }
  CHECK(tally.shared > 20000);
  CHECK(tally.evicted > 20000);
  CHECK(tally.diverged > 1000);
  CHECK(tally.refused > 2000);
}

}  // namespace
}  // namespace eventide

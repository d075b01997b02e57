#include "serve/blocks.h"

#include <map>
#include <random>

#include "tests/support/test.h"

namespace eventide {
namespace {

TEST_CASE("A block pool hands out every block once and gets all of them back") {
  auto pool = BlockPool::Create(5, 16);
  REQUIRE(pool.ok());
  std::vector<BlockId> a, b;
  CHECK(pool->Allocate(3, &a));
  CHECK_FALSE(pool->Allocate(3, &b));
  CHECK(b.empty());
  CHECK(pool->Allocate(2, &b));
  CHECK(pool->free_blocks() == 0);
  CHECK(pool->Release(a).ok());
  CHECK(pool->free_blocks() == 3);
  CHECK(pool->CheckIntegrity(std::vector<std::span<const BlockId>>{b}).ok());
  CHECK_FALSE(pool->CheckIntegrity(std::vector<std::span<const BlockId>>{a}).ok());
  CHECK(pool->BlocksFor(0) == 0);
  CHECK(pool->BlocksFor(16) == 1);
  CHECK(pool->BlocksFor(17) == 2);
}

TEST_CASE("A shared block is free after its last reference only") {
  auto pool = BlockPool::Create(2, 16);
  REQUIRE(pool.ok());
  std::vector<BlockId> table;
  REQUIRE(pool->Allocate(1, &table));
  CHECK(pool->Share(table[0]).ok());
  CHECK(pool->references(table[0]) == 2);
  CHECK(pool->Release(table).ok());
  CHECK(pool->free_blocks() == 1);
  CHECK(pool->Release(table).ok());
  CHECK(pool->free_blocks() == 2);
  CHECK_FALSE(pool->Share(table[0]).ok());
}

TEST_CASE("A wrong release changes nothing and names the block") {
  auto pool = BlockPool::Create(4, 16);
  REQUIRE(pool.ok());
  std::vector<BlockId> table;
  REQUIRE(pool->Allocate(2, &table));
  std::vector<BlockId> wrong = {table[0], table[1], table[0]};
  absl::Status status = pool->Release(wrong);
  CHECK_FALSE(status.ok());
  CHECK(std::string(status.message()).find(std::to_string(table[0])) != std::string::npos);
  CHECK(pool->used_blocks() == 2);
  CHECK(pool->CheckIntegrity(std::vector<std::span<const BlockId>>{table}).ok());
  CHECK_FALSE(pool->Release(std::vector<BlockId>{3}).ok());
}

TEST_CASE("A pool may end at the largest 32-bit ids and costs no memory for blocks never used") {
  auto pool = BlockPool::Create(0xffffffffull, 16);
  REQUIRE(pool.ok());
  std::vector<BlockId> table;
  REQUIRE(pool->Allocate(3, &table));
  CHECK(pool->free_blocks() == 0xfffffffcull);
  auto high = BlockPool::Create(4, 16, 0xfffffffbu);
  REQUIRE(high.ok());
  std::vector<BlockId> ids;
  REQUIRE(high->Allocate(4, &ids));
  CHECK(ids.back() == 0xfffffffeu);
  CHECK(high->Release(ids).ok());
  CHECK(high->CheckIntegrity().ok());
  CHECK_FALSE(BlockPool::Create(5, 16, 0xfffffffbu).ok());
  CHECK_FALSE(BlockPool::Create(0, 16).ok());
  CHECK_FALSE(BlockPool::Create(1, 0).ok());
}

TEST_CASE("Random histories of allocating, sharing and releasing keep the accounts exact") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    auto pool = BlockPool::Create(1 + random() % 40, 16, static_cast<BlockId>(random() % 100000));
    REQUIRE(pool.ok());
    std::vector<std::vector<BlockId>> tables;
    for (int step = 0; step < 100; ++step) {
      uint64_t choice = random() % 4;
      if (choice < 2) {
        std::vector<BlockId> table;
        uint64_t free = pool->free_blocks(), count = random() % 8;
        bool ok = pool->Allocate(count, &table);
        REQUIRE(ok == (count <= free));
        if (ok) tables.push_back(table);
      } else if (choice == 2 && !tables.empty()) {
        std::vector<BlockId> copy = tables[random() % tables.size()];
        for (BlockId id : copy) REQUIRE(pool->Share(id).ok());
        tables.push_back(copy);
      } else if (!tables.empty()) {
        size_t at = random() % tables.size();
        REQUIRE(pool->Release(tables[at]).ok());
        tables.erase(tables.begin() + static_cast<std::ptrdiff_t>(at));
      }
      std::vector<std::span<const BlockId>> owners(tables.begin(), tables.end());
      REQUIRE(pool->CheckIntegrity(owners).ok());
    }
    for (const auto& table : tables) REQUIRE(pool->Release(table).ok());
    REQUIRE(pool->free_blocks() == pool->capacity());
  }
}

}  // namespace
}  // namespace eventide

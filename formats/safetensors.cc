#include "formats/safetensors.h"

#include <filesystem>
#include <set>
#include <utility>

#include "core/status.h"
#include "formats/json.h"

namespace eventide {
namespace {

using nlohmann::json;

constexpr size_t kMaxIndexBytes = 100'000'000;
constexpr size_t kMaxShards = 10'000;

// A shard is a plain file name: an index must not reach out of its folder.
bool IsPlainName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string("/\\\0", 3)) == std::string::npos;
}

absl::StatusOr<absl::flat_hash_map<std::string, std::string>> ReadIndex(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxIndexBytes));
  ASSIGN_OR_RETURN(const json root, ParseJsonObject(text, path));
  const json* map = JsonFind(root, "weight_map");
  if (map == nullptr || !map->is_object() || map->empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": weight_map is missing or empty"));
  }
  absl::flat_hash_map<std::string, std::string> result;
  for (const auto& item : map->items()) {
    if (!item.value().is_string() || !IsPlainName(item.value().get_ref<const std::string&>())) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor ", item.key(),
                       " is not mapped to a file name: ", JsonExcerpt(item.value())));
    }
    result[item.key()] = item.value().get<std::string>();
  }
  return result;
}

}  // namespace

const Safetensors::Tensor* Safetensors::Find(absl::string_view name) const {
  auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

absl::Status Safetensors::AddFile(const std::string& path) {
  ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  uint64_t data_offset = 0;
  ASSIGN_OR_RETURN(std::vector<SafetensorsEntry> entries,
                   ParseSafetensors(file.text(), path, &data_offset));
  for (SafetensorsEntry& entry : entries) {
    if (!index_.emplace(entry.name, tensors_.size()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor ", entry.name, " is also in another shard"));
    }
    const void* data = file.data() + data_offset + entry.begin;
    tensors_.push_back({std::move(entry), data});
  }
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Safetensors>> Safetensors::OpenFile(const std::string& path) {
  auto result = std::make_unique<Safetensors>();
  RETURN_IF_ERROR(result->AddFile(path));
  return result;
}

absl::StatusOr<std::unique_ptr<Safetensors>> Safetensors::OpenFolder(const std::string& folder) {
  const std::string single = folder + "/model.safetensors";
  const std::string index_path = single + ".index.json";
  std::error_code error;
  if (!std::filesystem::exists(index_path, error)) {
    if (!std::filesystem::exists(single, error)) {
      return absl::NotFoundError(
          absl::StrCat(folder, " has neither model.safetensors nor model.safetensors.index.json"));
    }
    return OpenFile(single);
  }
  ASSIGN_OR_RETURN(const auto map, ReadIndex(index_path));
  std::set<std::string> shards;
  for (const auto& [name, shard] : map) shards.insert(shard);
  if (shards.size() > kMaxShards) {
    return absl::InvalidArgumentError(
        absl::StrCat(index_path, ": more than ", kMaxShards, " shards"));
  }
  auto result = std::make_unique<Safetensors>();
  for (const std::string& shard : shards) {
    const size_t first = result->tensors_.size();
    RETURN_IF_ERROR(result->AddFile(absl::StrCat(folder, "/", shard)));
    for (size_t i = first; i < result->tensors_.size(); ++i) {
      const std::string& name = result->tensors_[i].entry.name;
      auto it = map.find(name);
      if (it == map.end() || it->second != shard) {
        return absl::InvalidArgumentError(absl::StrCat(index_path, ": tensor ", name, " is in ",
                                                       shard, ", but the index does not say so"));
      }
    }
  }
  for (const auto& [name, shard] : map) {
    if (result->Find(name) == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(index_path, ": tensor ", name, " should be in ", shard, ", but is not"));
    }
  }
  return result;
}

}  // namespace eventide

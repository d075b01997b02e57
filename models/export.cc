#include "models/export.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "core/status.h"
#include "formats/json.h"
#include "formats/safetensors.h"

namespace eventide {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kChunkElements = 1 << 20;

// A file that has its name only once it is complete.
class OutputFile {
 public:
  explicit OutputFile(std::string path) : path_(std::move(path)), partial_(path_ + ".partial") {
    file_.reset(std::fopen(partial_.c_str(), "wb"));
  }
  ~OutputFile() {
    if (committed_) return;
    file_.reset();
    std::remove(partial_.c_str());
  }

  absl::Status Write(const void* data, size_t bytes) {
    if (!file_ || std::fwrite(data, 1, bytes, file_.get()) != bytes) return Error("cannot write");
    return absl::OkStatus();
  }

  absl::Status Commit() {
    if (!file_ || std::fclose(file_.release()) != 0) return Error("cannot write");
    if (std::rename(partial_.c_str(), path_.c_str()) != 0) return Error("cannot rename to");
    committed_ = true;
    return absl::OkStatus();
  }

 private:
  absl::Status Error(const char* what) const {
    return absl::InternalError(absl::StrCat(what, " ", path_, ": ", std::strerror(errno)));
  }

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  const std::string path_;
  const std::string partial_;
  std::unique_ptr<std::FILE, Close> file_;
  bool committed_ = false;
};

absl::Status WriteText(const std::string& path, const std::string& text) {
  OutputFile file(path);
  RETURN_IF_ERROR(file.Write(text.data(), text.size()));
  return file.Commit();
}

using Shard = std::vector<SafetensorsEntry>;

std::vector<Shard> Split(const std::vector<TensorInfo>& tensors, DType dtype, int64_t limit,
                         int64_t* total) {
  std::vector<Shard> shards(1);
  int64_t bytes = 0;
  for (const TensorInfo& info : tensors) {
    const int64_t size = info.Elements() * int64_t(DTypeSize(dtype));
    if (!shards.back().empty() && bytes + size > limit) {
      shards.emplace_back();
      bytes = 0;
    }
    SafetensorsEntry entry;
    entry.name = info.name;
    entry.dtype = dtype;
    entry.shape = info.shape;
    shards.back().push_back(std::move(entry));
    bytes += size;
    *total += size;
  }
  return shards;
}

absl::Status WriteShard(const WeightSource& source, DType dtype, const std::string& path,
                        Shard* shard, const std::function<absl::Status(int64_t)>& wrote) {
  OutputFile file(path);
  const std::string header = SafetensorsHeader(shard);
  RETURN_IF_ERROR(file.Write(header.data(), header.size()));
  std::vector<char> chunk(size_t(kChunkElements) * DTypeSize(dtype));
  for (const SafetensorsEntry& entry : *shard) {
    const int64_t elements = int64_t(entry.end - entry.begin) / int64_t(DTypeSize(dtype));
    for (int64_t first = 0; first < elements; first += kChunkElements) {
      const int64_t count = std::min(kChunkElements, elements - first);
      RETURN_IF_ERROR(source.Read(entry.name, first, count, dtype, chunk.data()));
      RETURN_IF_ERROR(file.Write(chunk.data(), size_t(count) * DTypeSize(dtype)));
      RETURN_IF_ERROR(wrote(count * int64_t(DTypeSize(dtype))));
    }
  }
  return file.Commit();
}

// The folder and those around it that are not there yet, innermost first.
std::vector<fs::path> MissingFolders(const std::string& folder) {
  std::vector<fs::path> missing;
  std::error_code error;
  for (fs::path at = folder; !at.empty() && !fs::exists(at, error); at = at.parent_path()) missing.push_back(at);
  return missing;
}

absl::Status PrepareFolder(const std::string& folder, const ExportOptions& options) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot create folder ", folder, ": ", error.message()));
  }
  std::vector<std::string> names = {"config.json", "model.safetensors",
                                    "model.safetensors.index.json"};
  for (const ExportFile& file : options.files) names.push_back(file.name);
  for (const std::string& name : names) {
    if (fs::exists(fs::path(folder) / name, error)) {
      return absl::AlreadyExistsError(
          absl::StrCat(folder, " already holds a model (", name, "); choose another folder"));
    }
  }
  return absl::OkStatus();
}

// `written` names the files that are complete.
absl::Status WriteAll(const WeightSource& source, DType dtype, const std::string& folder,
                      const ExportOptions& options, std::vector<std::string>* written) {
  int64_t total = 0, done = 0;
  std::vector<Shard> shards =
      Split(ExpectedTensors(source.config()), dtype, options.max_shard_bytes, &total);
  const auto wrote = [&](int64_t bytes) {
    done += bytes;
    if (options.progress) options.progress(done, total);
    return options.stop && options.stop() ? absl::CancelledError("the export was stopped") : absl::OkStatus();
  };
  const auto write_text = [&](const std::string& name, const std::string& text) {
    const absl::Status status = WriteText(folder + "/" + name, text);
    if (status.ok()) written->push_back(name);
    return status;
  };
  nlohmann::ordered_json index;
  index["metadata"]["total_size"] = total;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shards.size() == 1 ? "model.safetensors"
                                                : absl::StrFormat("model-%05d-of-%05d.safetensors",
                                                                  i + 1, shards.size());
    RETURN_IF_ERROR(WriteShard(source, dtype, folder + "/" + name, &shards[i], wrote));
    written->push_back(name);
    for (const SafetensorsEntry& entry : shards[i]) index["weight_map"][entry.name] = name;
  }
  if (shards.size() > 1) {
    RETURN_IF_ERROR(write_text("model.safetensors.index.json", index.dump(2) + "\n"));
  }
  for (const ExportFile& file : options.files) RETURN_IF_ERROR(write_text(file.name, file.content));
  return write_text("config.json", HfConfigJson(source.config(), dtype));
}

}  // namespace

absl::Status ExportHuggingFace(const WeightSource& source, DType dtype, const std::string& folder,
                               const ExportOptions& options) {
  if (!IsWeightDType(dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("cannot export as ", DTypeName(dtype)));
  }
  RETURN_IF_ERROR(CheckComplete(source));
  const std::vector<fs::path> created = MissingFolders(folder);
  std::vector<std::string> written;
  absl::Status status = PrepareFolder(folder, options);
  if (status.ok()) status = WriteAll(source, dtype, folder, options, &written);
  if (!status.ok()) {
    std::error_code error;  // a folder that somebody else has put something in stays
    for (const std::string& name : written) fs::remove(fs::path(folder) / name, error);
    for (const fs::path& path : created) fs::remove(path, error);
  }
  return status;
}

}  // namespace eventide

#include "formats/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/status.h"

namespace eventide {
namespace {

absl::Status FileError(const std::string& path, const char* what, int error) {
  const std::string text = absl::StrCat(what, " ", path, ": ", std::strerror(error));
  return error == ENOENT ? absl::NotFoundError(text) : absl::InvalidArgumentError(text);
}

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return FileError(path, "cannot open", errno);
  struct stat facts;
  if (fstat(file, &facts) != 0) {
    const int error = errno;
    close(file);
    return FileError(path, "cannot examine", error);
  }
  if (!S_ISREG(facts.st_mode)) {
    close(file);
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  }
  MappedFile result;
  result.path_ = path;
  if (facts.st_size > 0) {
    void* data = mmap(nullptr, size_t(facts.st_size), PROT_READ, MAP_PRIVATE, file, 0);
    const int error = errno;
    if (data == MAP_FAILED) {
      close(file);
      return FileError(path, "cannot map", error);
    }
    result.data_ = static_cast<const unsigned char*>(data);
    result.size_ = size_t(facts.st_size);
  }
  close(file);
  return result;
}

MappedFile::MappedFile(MappedFile&& other) noexcept {
  *this = std::move(other);
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<unsigned char*>(data_), size_);
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t limit) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  if (file.size() > limit) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", file.size(), " bytes; the limit is ", limit));
  }
  return std::string(file.text());
}

}  // namespace eventide

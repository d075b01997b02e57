#include "jit/cubin.h"

#include <elf.h>

#include <cstring>
#include <regex>

namespace eventide {
namespace {

// Attributes in .nv.info sections: {u8 format, u8 attribute, u16 size or value, size bytes}.
// Numbers from `cuobjdump -elf` of CUDA 11 to 13.
constexpr int kFormatBytes = 4;          // the payload follows
constexpr int kAttrMaxThreads = 0x05;    // three u32
constexpr int kAttrFrameSize = 0x11;     // {u32 symbol, u32 bytes}
constexpr int kAttrMinStackSize = 0x12;  // {u32 symbol, u32 bytes}
constexpr int kAttrRegCount = 0x2f;      // {u32 symbol, u32 count}

class Elf {
 public:
  explicit Elf(const std::string& bytes) : bytes_(bytes) {}

  absl::Status Open() {
    Elf64_Ehdr header;
    if (!Get(0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
        header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shentsize != sizeof(Elf64_Shdr)) {
      return absl::DataLossError("the compiler's cubin is not a 64-bit ELF file");
    }
    for (int i = 0; i < header.e_shnum; ++i) {
      Elf64_Shdr section;
      if (!Get(header.e_shoff + uint64_t{sizeof(section)} * i, section)) {
        return absl::DataLossError("the compiler's cubin is truncated");
      }
      sections_.push_back(section);
    }
    names_ = header.e_shstrndx;
    return absl::OkStatus();
  }

  const Elf64_Shdr* Find(const std::string& name) const {
    for (const Elf64_Shdr& section : sections_) {
      if (Name(names_, section.sh_name) == name) return &section;
    }
    return nullptr;
  }

  std::string Content(const Elf64_Shdr& section) const {
    if (section.sh_offset > bytes_.size() || section.sh_size > bytes_.size() - section.sh_offset) {
      return "";
    }
    return bytes_.substr(section.sh_offset, section.sh_size);
  }

  // The name of symbol `index`.
  std::string Symbol(uint32_t index) const {
    const Elf64_Shdr* table = Find(".symtab");
    Elf64_Sym symbol;
    if (table == nullptr || !Get(table->sh_offset + uint64_t{sizeof(symbol)} * index, symbol))
      return "";
    return Name(table->sh_link, symbol.st_name);
  }

 private:
  template <class T>
  bool Get(uint64_t offset, T& value) const {
    if (offset > bytes_.size() || sizeof(T) > bytes_.size() - offset) return false;
    std::memcpy(&value, bytes_.data() + offset, sizeof(T));
    return true;
  }
  std::string Name(uint32_t section, uint32_t offset) const {
    if (section >= sections_.size()) return "";
    const uint64_t at = sections_[section].sh_offset + offset;
    if (at >= bytes_.size()) return "";
    return std::string(bytes_.data() + at, strnlen(bytes_.data() + at, bytes_.size() - at));
  }

  const std::string& bytes_;
  std::vector<Elf64_Shdr> sections_;
  uint32_t names_ = 0;
};

// Calls visit(attribute, payload) for every attribute with a payload.
template <class F>
void ForEachAttribute(const std::string& info, const F& visit) {
  size_t at = 0;
  while (at + 4 <= info.size()) {
    const uint8_t format = info[at], attribute = info[at + 1];
    uint16_t size;
    std::memcpy(&size, info.data() + at + 2, 2);
    at += 4;
    if (format != kFormatBytes) continue;
    if (size > info.size() - at) return;
    visit(attribute, info.data() + at, size);
    at += size;
  }
}

}  // namespace

absl::StatusOr<KernelUsage> ReadCubinUsage(const std::string& cubin, const std::string& kernel) {
  Elf elf(cubin);
  RETURN_IF_ERROR(elf.Open());
  const Elf64_Shdr* all = elf.Find(".nv.info");
  const Elf64_Shdr* own = elf.Find(".nv.info." + kernel);
  const Elf64_Shdr* text = elf.Find(".text." + kernel);
  if (all == nullptr || own == nullptr || text == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("the cubin has no kernel ", kernel, " with resource information"));
  }
  KernelUsage usage;
  int frame = -1, stack = -1;
  ForEachAttribute(elf.Content(*all), [&](int attribute, const char* data, int size) {
    uint32_t pair[2];
    if (size != sizeof(pair)) return;
    std::memcpy(pair, data, sizeof(pair));
    if (elf.Symbol(pair[0]) != kernel) return;
    if (attribute == kAttrFrameSize) frame = static_cast<int>(pair[1]);
    if (attribute == kAttrMinStackSize) stack = static_cast<int>(pair[1]);
    if (attribute == kAttrRegCount) usage.registers = static_cast<int>(pair[1]);
  });
  ForEachAttribute(elf.Content(*own), [&](int attribute, const char* data, int size) {
    uint32_t threads[3];
    if (attribute != kAttrMaxThreads || size != sizeof(threads)) return;
    std::memcpy(threads, data, sizeof(threads));
    usage.max_threads = static_cast<int>(threads[0] * threads[1] * threads[2]);
  });
  if (frame < 0 || stack < 0 || usage.registers == 0) {
    return absl::NotFoundError(absl::StrCat(
        "the cubin does not say how many registers and how much stack kernel ", kernel, " uses"));
  }
  usage.stack_bytes = std::max(frame, stack);
  usage.code_bytes = static_cast<int>(text->sh_size);
  if (const Elf64_Shdr* shared = elf.Find(".nv.shared." + kernel)) {
    usage.shared_bytes = static_cast<int>(shared->sh_size);
  }
  return usage;
}

absl::Status ReadAssemblerLog(const std::string& log, const std::string& kernel,
                              KernelUsage& usage) {
  usage.setmaxnreg_ignored =
      std::regex_search(log, std::regex("setmaxnreg[^\n]*ignored", std::regex::icase));
  // Of the kernel and of every function that was not inlined into it.
  const std::regex spills("(\\d+) bytes spill stores, (\\d+) bytes spill loads");
  const std::sregex_iterator end;
  for (std::sregex_iterator match(log.begin(), log.end(), spills); match != end; ++match) {
    usage.spill_bytes += std::stoi((*match)[1]) + std::stoi((*match)[2]);
  }
  if (log.find("Function properties for " + kernel) != std::string::npos) return absl::OkStatus();
  // Spilled registers live in the stack frame, so a kernel without one has none.
  if (usage.stack_bytes == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the assembler's log says nothing about spills of ",
                                          kernel, ", which has a stack of ", usage.stack_bytes,
                                          " bytes; was the compiler's own cache used?"));
}

}  // namespace eventide

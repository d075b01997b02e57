#include "runtime/cuda_packer.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_format.h"

namespace eventide {
namespace {

constexpr unsigned kThreads = 256;  // kPackThreads
constexpr int kBlocksPerSm = 8;     // as many as are resident: 2,048 threads

class CudaPacker final : public DevicePacker {
 public:
  CudaPacker(const CudaDriver* driver, CuStream stream, int multiprocessors)
      : driver_(driver),
        stream_(stream),
        most_blocks_(static_cast<unsigned>(multiprocessors * kBlocksPerSm)) {}
  ~CudaPacker() override {
    if (!slots_.empty()) driver_->StreamSynchronize(stream_);
    Release();
  }

  absl::Status Find(CuModule module) {
    RETURN_IF_ERROR(driver_->Check(
        driver_->ModuleGetFunction(&tiles_, module, "eventide_pack_tiles"),
        "finding the kernel that packs tiles"));
    return driver_->Check(driver_->ModuleGetFunction(&rows_, module, "eventide_pack_rows"),
                          "finding the kernel that packs rows");
  }

  absl::Status Open(int slots, int64_t bytes) override {
    EVT_CHECK(slots_.empty() && slots > 0 && bytes > 0);
    bytes_ = (bytes + 255) / 256 * 256;
    const size_t size = static_cast<size_t>(bytes_) * static_cast<size_t>(slots);
    if (const int result = driver_->MemAlloc(&device_, size); result != 0) {
      size_t free = 0, total = 0;
      driver_->MemGetInfo(&free, &total);
      return driver_->Check(
          result, absl::StrFormat("packing weights needs %d bytes on the GPU beside the model's own "
                                  "(%d of %d bytes are free)",
                                  size, free, total));
    }
    RETURN_IF_ERROR(driver_->Check(driver_->MemHostAlloc(&host_, size, 0),
                                   absl::StrFormat("allocating %d bytes of pinned memory", size)));
    slots_.resize(static_cast<size_t>(slots));
    for (Slot& slot : slots_) {
      RETURN_IF_ERROR(
          driver_->Check(driver_->EventCreate(&slot.read, kCuEventNoTiming), "creating an event"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<uint8_t*> Host(int slot) override {
    Slot& s = slots_[static_cast<size_t>(slot)];
    if (s.pending) {
      RETURN_IF_ERROR(driver_->Check(driver_->EventSynchronize(s.read), "packing weights"));
      s.pending = false;
    }
    return static_cast<uint8_t*>(host_) + slot * bytes_;
  }

  uint64_t Device(int slot) const override { return device_ + static_cast<uint64_t>(slot * bytes_); }

  absl::Status Submit(int slot, int64_t bytes, absl::Span<const PackOrder> orders) override {
    EVT_CHECK(bytes >= 0 && bytes <= bytes_);
    const uint8_t* host = static_cast<const uint8_t*>(host_) + slot * bytes_;
    if (bytes > 0) {
      RETURN_IF_ERROR(driver_->Check(
          driver_->MemcpyHtoDAsync(Device(slot), host, static_cast<size_t>(bytes), stream_),
          absl::StrFormat("copying %d bytes of weights to the GPU", bytes)));
    }
    for (const PackOrder& order : orders) RETURN_IF_ERROR(Launch(order));
    Slot& s = slots_[static_cast<size_t>(slot)];
    s.pending = true;
    return driver_->Check(driver_->EventRecord(s.read, stream_), "recording an event");
  }

  absl::Status Finish() override {
    const absl::Status done =
        driver_->Check(driver_->StreamSynchronize(stream_), "packing weights");
    Release();
    return done;
  }

 private:
  struct Slot {
    CuEvent read = nullptr;  // the device has used the slot's content
    bool pending = false;
  };

  absl::Status Launch(PackOrder order) {
    const bool tiles = order.height > 0;
    EVT_CHECK(!tiles || (order.height % 16 == 0 && order.height <= kPackHeight &&
                         order.rows % order.height == 0));
    const int64_t elements = tiles ? order.rows / order.height * PackedTile(order.height, order.columns)
                                   : int64_t{order.rows} * order.columns;
    if (elements == 0) return absl::OkStatus();
    // No block without work, for what vectors are; any number of blocks is right.
    const int64_t useful = (elements + 4 * kThreads - 1) / (4 * kThreads);
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(useful, most_blocks_));
    void* parameters[] = {&order};  // copied by the launch
    return driver_->Check(driver_->LaunchKernel(tiles ? tiles_ : rows_, blocks, 1, 1, kThreads, 1, 1,
                                                0, stream_, parameters, nullptr),
                          "launching the kernel that packs weights");
  }

  void Release() {
    for (const Slot& slot : slots_) {
      if (slot.read != nullptr) driver_->EventDestroy(slot.read);
    }
    slots_.clear();
    if (host_ != nullptr) driver_->MemFreeHost(host_);
    if (device_ != 0) driver_->MemFree(device_);
    host_ = nullptr;
    device_ = 0;
  }

  const CudaDriver* const driver_;
  const CuStream stream_;
  const unsigned most_blocks_;
  CuFunction tiles_ = nullptr, rows_ = nullptr;
  void* host_ = nullptr;
  CuPointer device_ = 0;
  int64_t bytes_ = 0;  // of a slot
  std::vector<Slot> slots_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DevicePacker>> MakeCudaPacker(const CudaDriver* driver,
                                                             CuModule module, CuStream stream,
                                                             int multiprocessors) {
  auto packer = std::make_unique<CudaPacker>(driver, stream, multiprocessors);
  RETURN_IF_ERROR(packer->Find(module));
  return packer;
}

}  // namespace eventide

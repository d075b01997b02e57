#include "runtime/cuda_device.h"

#include "absl/strings/str_format.h"

namespace eventide {

bool CudaAvailable(std::string* why) {
  const absl::StatusOr<const CudaDriver*> driver = CudaDriver::Get();
  int count = 0;
  if (!driver.ok()) {
    *why = std::string(driver.status().message());
  } else if ((*driver)->DeviceGetCount(&count) != 0 || count == 0) {
    *why = "no GPU is visible: check nvidia-smi and CUDA_VISIBLE_DEVICES";
  }
  return count > 0;
}

CudaDevice::~CudaDevice() {
  if (context == nullptr) return;
  driver->CtxSetCurrent(context);
  if (stream != nullptr) driver->StreamDestroy(stream);
  if (second_stream != nullptr) driver->StreamDestroy(second_stream);
  driver->PrimaryCtxRelease(device);
}

absl::Status CudaDevice::Open(int ordinal) {
  ASSIGN_OR_RETURN(driver, CudaDriver::Get());
  int count = 0;
  RETURN_IF_ERROR(driver->Check(driver->DeviceGetCount(&count), "counting GPUs"));
  if (ordinal < 0 || ordinal >= count) {
    return absl::InvalidArgumentError(
        absl::StrFormat("GPU %d does not exist: %d are visible", ordinal, count));
  }
  RETURN_IF_ERROR(driver->Check(driver->DeviceGet(&device, ordinal), "opening the GPU"));
  char text[256] = {};
  driver->DeviceGetName(text, sizeof(text), device);
  name = text;
  ASSIGN_OR_RETURN(
      arch, ArchFor(driver->Attribute(device, kCuMajor), driver->Attribute(device, kCuMinor)));
  if (driver->Attribute(device, kCuCooperativeLaunch) == 0) {
    return absl::UnimplementedError(
        absl::StrCat(name, " (in this mode) cannot launch cooperative kernels"));
  }
  multiprocessors = driver->Attribute(device, kCuMultiprocessors);
  RETURN_IF_ERROR(driver->Check(driver->PrimaryCtxRetain(&context, device),
                                absl::StrCat("opening a context on ", name)));
  RETURN_IF_ERROR(Enter());
  RETURN_IF_ERROR(
      driver->Check(driver->StreamCreate(&stream, kCuStreamNonBlocking), "creating a stream"));
  return driver->Check(driver->StreamCreate(&second_stream, kCuStreamNonBlocking),
                       "creating a stream");
}

absl::Status CudaDevice::Enter() const {
  return driver->Check(driver->CtxSetCurrent(context), "using the GPU");
}

}  // namespace eventide

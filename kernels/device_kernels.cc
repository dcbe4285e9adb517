#include "kernels/device_kernels.h"

#include <atomic>
#include <utility>

#include "base/error.h"

namespace retort::kernels {
namespace {

constexpr size_t kNumTypes = static_cast<size_t>(at::COMPILE_TIME_MAX_DEVICE_TYPES);

// Kernels are found by device type, as ATen's own operators are: the module is never closed, and
// whoever has a tensor must find its kernels.
std::atomic<DeviceKernels*>& registered(at::DeviceType type) {
  static std::array<std::atomic<DeviceKernels*>, kNumTypes> all{};
  const auto index = static_cast<size_t>(type);
  RETORT_CHECK(index < kNumTypes) << "device type " << index;
  return all[index];
}

}  // namespace

DeviceKernels* device_kernels(const at::Device& device) {
  return registered(device.type()).load(std::memory_order_acquire);
}

void register_device_kernels(std::unique_ptr<DeviceKernels> kernels) {
  RETORT_CHECK(kernels != nullptr) << "no kernels";
  DeviceKernels* none = nullptr;
  if (registered(kernels->device_type()).compare_exchange_strong(none, kernels.get()))
    kernels.release();
}

void register_module_kernels(const SharedModule& module) {
  register_device_kernels(
      std::unique_ptr<DeviceKernels>(module.function<MakeDeviceKernels>(kDeviceKernelsFunction)()));
}

}  // namespace retort::kernels

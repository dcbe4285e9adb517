#include "tests/gpu/device_under_test.h"

#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "parallel/detail/device_backends.h"

namespace retort::gpu_testing {

std::string module_path() {
  if (const char* path = std::getenv("RETORT_CUDA_MODULE")) return path;
  const char* program = std::getenv("RETORT_BIN");
  return (std::filesystem::path(program ? program : "build/bin/retort").parent_path() /
          "libretort_cuda.so")
      .string();
}

DeviceUnderTest find_device() {
  DeviceUnderTest result;
  if (!std::filesystem::exists(module_path())) {
    result.missing = "no CUDA module: ./dev build --cuda makes " + module_path();
    return result;
  }
  try {
    result.module = parallel::DeviceModule::load(module_path());
    result.num_devices = result.module->num_devices();
  } catch (const Error& e) {
    // Without a driver its libraries are not installed either.
    result.missing = std::filesystem::exists("/dev/nvidiactl")
                         ? "the CUDA module cannot be used here: " + e.message()
                         : "no device: this machine has no NVIDIA driver (/dev/nvidiactl)";
    return result;
  }
  if (result.num_devices == 0)
    result.missing = "no device: the CUDA driver is missing or shows none";
  return result;
}

at::Device device_number(int64_t index) {
  static const at::DeviceType type =
      parallel::DeviceModule::load(module_path())->backends().device_type();
  return {type, static_cast<at::DeviceIndex>(index)};
}

}  // namespace retort::gpu_testing

// The emulated kernels on the stand-in device, with the names of what is launched.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "tests/kernels/emulated_kernels.h"
#include "tests/losses/stand_in_device.h"

namespace retort::test {

using Launches = std::map<std::string, int64_t>;

class NamedKernels final : public kernels::DeviceKernels {
 public:
  at::DeviceType device_type() const override { return kernels_.device_type(); }
  void prepare(const at::Device& device) override { kernels_.prepare(device); }
  int64_t max_shared_bytes(const at::Device& device) override {
    return kernels_.max_shared_bytes(device);
  }
  void launch(const kernels::Launch& launch, const at::Device& device) override {
    if (!launch.is_empty()) ++launches_[launch.name];
    kernels_.launch(launch, device);
  }
  // Those since the last call. Nobody launches meanwhile.
  Launches take() { return std::exchange(launches_, {}); }

 private:
  emulator::EmulatedKernels kernels_{1, at::DeviceType::PrivateUse1, with_open_stand_in};
  Launches launches_;
};

// Those of the stand-in, where it was registered with them.
inline NamedKernels& named_kernels() {
  return static_cast<NamedKernels&>(*kernels::device_kernels(stand_in_device()));
}

}  // namespace retort::test

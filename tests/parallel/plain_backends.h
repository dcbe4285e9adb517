// Devices that do nothing, for tests of what worlds make of them: override what the test is about.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/detail/device_backends.h"

namespace retort::parallel::testing {

class PlainBackends : public detail::DeviceBackends {
 public:
  at::DeviceType device_type() const override { return at::kCUDA; }
  std::string versions() const override { return "none"; }
  int64_t num_devices() const override { return 1; }
  void use_device(int64_t) override {}
  void synchronize() override {}
  int64_t peak_bytes() const override { return 0; }
  detail::DeviceMemory memory() const override { return {}; }
  std::vector<int64_t> contexts() const override { return {}; }
  c10::intrusive_ptr<c10d::Backend> connect(const detail::DeviceGroupSpec&,
                                            const c10::intrusive_ptr<c10d::Store>&) override {
    return {};
  }
  void use_device_in_thread() override {}
  void abort(const std::vector<c10::intrusive_ptr<c10d::Backend>>&) override {}
};

}  // namespace retort::parallel::testing

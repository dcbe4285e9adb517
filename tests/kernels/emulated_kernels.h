// The kernels of kernels/*.cuh, compiled for the emulator and found by name: a kernel can be run
// as cudaLaunchKernel would, and a device of the tests can bring them as its own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device_kernels.h"
#include "tests/kernels/emulator.h"

namespace retort::emulator {

struct EmulatedKernel {
  int64_t max_threads = 0;  // of a block, by its __launch_bounds__
  std::vector<size_t> argument_bytes;
  std::function<void(void** args)> run;  // one thread of it
};
using KernelTable = std::map<std::string, EmulatedKernel, std::less<>>;

// All of them. In the file that emulate_kernels.py writes.
const KernelTable& emulated_kernels();

template <class... Arguments>
EmulatedKernel emulated_kernel(void (*function)(Arguments...), int64_t max_threads) {
  const auto call = [function]<size_t... kIndex>(void** args, std::index_sequence<kIndex...>) {
    function(*static_cast<Arguments*>(args[kIndex])...);
  };
  return {.max_threads = max_threads,
          .argument_bytes = {sizeof(Arguments)...},
          .run = [call](void** args) { call(args, std::index_sequence_for<Arguments...>()); }};
}

// Of a device whose memory this process can read and write while a kernel runs: the CPU's own by
// default. A launch is done when it returns.
class EmulatedKernels final : public kernels::DeviceKernels {
 public:
  // What is run around each launch: it opens the memory, calls what it is given, closes it.
  using Around = std::function<void(const std::function<void()>&)>;

  explicit EmulatedKernels(uint64_t seed, at::DeviceType type = at::kCPU, Around around = nullptr);

  at::DeviceType device_type() const override { return type_; }
  void prepare(const at::Device& device) override {}
  int64_t max_shared_bytes(const at::Device& device) override { return 96 << 10; }
  // Besides what DeviceKernels and Emulator say: kMismatch if number or sizes of the arguments are
  // not those of the kernel, kInvalidArgument for more threads than it was compiled for.
  void launch(const kernels::Launch& launch, const at::Device& device) override;

  int64_t num_launches() const { return num_launches_; }

 private:
  Emulator emulator_;
  at::DeviceType type_;
  Around around_;
  std::atomic<int64_t> num_launches_ = 0;
};

}  // namespace retort::emulator

// How C++ code runs the kernels of this folder: those of a tensor's device are found by its type.
// The CUDA module brings them as SASS (kernels/cuda), the device of the tests as emulated threads
// (tests/kernels).
//
//   if (DeviceKernels* kernels = device_kernels(x.device()))
//     launch_kernel(*kernels, x.device(), {.name = "retort_scale_f32", .grid_x = rows},
//                   x.mutable_data_ptr<float>(), factor, width);
//   else ... the operators of ATen
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>

#include "base/shared_module.h"

namespace retort::kernels {

struct Launch {
  const char* name = "";           // of an `extern "C" __global__` function in kernels/*.cuh
  int64_t grid_x = 1, grid_y = 1;  // blocks; where one is 0 nothing is run
  int64_t block = 256;             // threads of a block, in one dimension
  int64_t shared_bytes = 0;        // dynamic shared memory of a block
  // Where each argument lies, as cudaLaunchKernel takes them, and how many bytes it has. They are
  // copied by the launch.
  void** args = nullptr;
  std::span<const size_t> argument_bytes = {};

  bool is_empty() const { return grid_x == 0 || grid_y == 0; }
};

// Threads: any.
class DeviceKernels {
 public:
  virtual ~DeviceKernels() = default;
  virtual at::DeviceType device_type() const = 0;
  // Loads the kernels for this device, which the first launch would do otherwise. kUnavailable,
  // with what there is, if none were built for such a device.
  virtual void prepare(const at::Device& device) = 0;
  // Its compute capability, 90 for 9.0: by it the launch shapes are chosen (launch_shapes.h). 0: it
  // has none.
  virtual int64_t capability(const at::Device& /*device*/) { return 0; }
  // The most dynamic shared memory that a block may have there, if the kernel has little of its
  // own.
  virtual int64_t max_shared_bytes(const at::Device& device) = 0;
  // Queues it on the current stream of the device: operators of ATen before and after it keep their
  // order. kUnavailable as prepare(); kMismatch if there is no kernel of that name.
  virtual void launch(const Launch& launch, const at::Device& device) = 0;
};

// Null where the device has none: always on a CPU. They live as long as the process.
DeviceKernels* device_kernels(const at::Device& device);
// From then on they are those of their device type, unless that has kernels already.
void register_device_kernels(std::unique_ptr<DeviceKernels> kernels);
// Registers those that the module brings.
void register_module_kernels(const SharedModule& module);

// The name of the module's C function that makes a DeviceKernels. Its number changes with this
// header.
inline constexpr const char* kDeviceKernelsFunction = "retort_cuda_kernels_2";
using MakeDeviceKernels = DeviceKernels*();

// Launches with these arguments: pointers, and numbers of exactly the types that the kernel has
// (int64_t, int32_t, float).
template <class... Arguments>
void launch_kernel(DeviceKernels& kernels, const at::Device& device, Launch launch,
                   const Arguments&... arguments) {
  static_assert(sizeof...(Arguments) > 0);
  static_assert((std::is_trivially_copyable_v<Arguments> && ...));
  std::array<void*, sizeof...(Arguments)> places{
      const_cast<void*>(static_cast<const void*>(&arguments))...};
  constexpr std::array<size_t, sizeof...(Arguments)> kBytes{sizeof(Arguments)...};
  launch.args = places.data();
  launch.argument_bytes = kBytes;
  kernels.launch(launch, device);
}

// Launches, on a device that has kernels, that of a name which is there for each dtype:
// `name`_bf16, or else `name`_f32.
template <class... Arguments>
void launch_kernel_for(at::ScalarType dtype, const std::string& name, const at::Device& device,
                       Launch launch, const Arguments&... arguments) {
  const std::string kernel = name + (dtype == at::kBFloat16 ? "_bf16" : "_f32");
  launch.name = kernel.c_str();
  launch_kernel(*device_kernels(device), device, launch, arguments...);
}

// How many blocks, threads or pieces of `size` it takes for `count`.
inline int64_t ceil_div(int64_t count, int64_t size) { return (count + size - 1) / size; }

// A tensor as the argument of a kernel; null for one that is undefined.
inline const void* read_address(const at::Tensor& t) {
  return t.defined() ? t.const_data_ptr() : nullptr;
}
inline void* write_address(at::Tensor& t) { return t.defined() ? t.mutable_data_ptr() : nullptr; }

}  // namespace retort::kernels

// The stand-in device as a module of the program: what libretort_cuda.so is for CUDA, with the
// device of tests/losses/stand_in_device.h and the emulated kernels. A role with `world.device:
// cuda` computes on it where RETORT_CUDA_MODULE names this file. One device, or as many as
// STAND_IN_DEVICES says; between them collectives are those of tests/parallel/stand_in.
#include <ATen/detail/CUDAHooksInterface.h>

#include <memory>

#include "base/error.h"
#include "parallel/detail/device_backends.h"
#include "rpc/detail/device_transfer.h"
#include "tests/kernels/emulated_kernels.h"
#include "tests/losses/stand_in_device.h"
#include "tests/parallel/stand_in/backends.h"
#include "tests/rpc/stand_in_transfer.h"

namespace retort::test {
namespace {

// What LibTorch finds where it looks for CUDA from now on, and does not where it has looked before.
struct HooksOfStandIn : at::CUDAHooksInterface {
  explicit HooksOfStandIn(at::CUDAHooksArgs) {}
};
using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, HooksOfStandIn);

void check_opened_in_time() {
  RETORT_CHECK(dynamic_cast<const HooksOfStandIn*>(&at::detail::getCUDAHooks()) != nullptr)
      << "LibTorch looked for CUDA before the module was opened, and does so only once";
}

}  // namespace
}  // namespace retort::test

// parallel::detail::kDeviceBackendsFunction
extern "C" __attribute__((visibility("default"))) retort::parallel::detail::DeviceBackends*
retort_cuda_backends_7() {
  retort::test::check_opened_in_time();
  retort::test::stand_in_device();
  return retort::test::stand_in_backends().release();
}

// kernels::kDeviceKernelsFunction
extern "C" __attribute__((visibility("default"))) retort::kernels::DeviceKernels*
retort_cuda_kernels_2() {
  return std::make_unique<retort::emulator::EmulatedKernels>(1, at::DeviceType::PrivateUse1,
                                                             retort::test::with_open_stand_in)
      .release();
}

// rpc::detail::kDeviceTransferFunction
extern "C" __attribute__((visibility("default"))) retort::rpc::detail::DeviceTransfer*
retort_cuda_transfer_4() {
  return retort::rpc::testing::stand_in_transfer().release();
}

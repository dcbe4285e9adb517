// The stand-in device as a module of the program: what libretort_cuda.so is for CUDA, with the
// device of tests/losses/stand_in_device.h and the emulated kernels. A role with `world.device:
// cuda` computes on it where RETORT_CUDA_MODULE names this file. One device, or as many as
// STAND_IN_DEVICES says; between them collectives are those of tests/parallel/stand_in.
#include <ATen/detail/CUDAHooksInterface.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <string>

#include "base/error.h"
#include "kernels/detail/kernel_images.h"
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

// The emulated kernels as those of a card whose compute capability STAND_IN_CAPABILITY says (75:
// 7.5), with images for some cards, as libretort_cuda.so has them; without it for every card.
class StandInKernels final : public kernels::DeviceKernels {
 public:
  at::DeviceType device_type() const override { return kernels_.device_type(); }
  void prepare(const at::Device&) override {
    static constexpr std::array<kernels::detail::KernelImage, 3> kImages{
        {{.architecture = 80}, {.architecture = 90}, {.architecture = 90, .is_ptx = true}}};
    const char* said = std::getenv("STAND_IN_CAPABILITY");
    if (said == nullptr) return;
    const int capability = std::stoi(said);
    if (kernels::detail::choose_image(kImages, capability) == nullptr)
      throw kernels::detail::no_image({.source = "norm.cuh", .images = kImages}, capability, "");
  }
  int64_t max_shared_bytes(const at::Device& device) override {
    return kernels_.max_shared_bytes(device);
  }
  void launch(const kernels::Launch& launch, const at::Device& device) override {
    kernels_.launch(launch, device);
  }

 private:
  emulator::EmulatedKernels kernels_{1, at::DeviceType::PrivateUse1, with_open_stand_in};
};

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
  return std::make_unique<retort::test::StandInKernels>().release();
}

// rpc::detail::kDeviceTransferFunction
extern "C" __attribute__((visibility("default"))) retort::rpc::detail::DeviceTransfer*
retort_cuda_transfer_4() {
  return retort::rpc::testing::stand_in_transfer().release();
}

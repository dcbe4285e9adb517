// How kernels are found and launched, on the CPU: which image is for a card, the table by device
// type, and launches that reach the emulator.
#include "kernels/device_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/sizes.h"
#include "kernels/detail/kernel_images.h"
#include "tests/kernels/emulated_kernels.h"
#include "tests/support/thrown.h"

namespace retort::kernels {
namespace {

using detail::choose_image;
using detail::KernelImage;
using emulator::EmulatedKernels;
using test::expect_error;

TEST(KernelImages, TheNearestSassOfTheSameGenerationElsePtx) {
  const std::vector<KernelImage> images{{80}, {86}, {90}, {100}, {120}, {80, true}, {90, true}};
  const auto chosen = [&](int capability) {
    const KernelImage* image = choose_image(images, capability);
    return image == nullptr ? "none" : detail::describe({image, 1});
  };
  EXPECT_EQ(chosen(80), "sm_80");
  EXPECT_EQ(chosen(86), "sm_86");
  EXPECT_EQ(chosen(89), "sm_86");
  EXPECT_EQ(chosen(90), "sm_90");
  EXPECT_EQ(chosen(103), "sm_100");
  EXPECT_EQ(chosen(110), "PTX of compute_90");
  EXPECT_EQ(chosen(121), "sm_120");
  EXPECT_EQ(chosen(75), "none");
  EXPECT_EQ(detail::describe({&images[3], 3}), "sm_100, sm_120, PTX of compute_80");
}

TEST(KernelImages, NoneForACardNamesTheCardAndWhatThereIs) {
  const std::vector<KernelImage> images{{80}, {90}, {90, true}};
  const detail::KernelFile file{.source = "norm.cuh", .images = images};
  expect_error(ErrorCode::kUnavailable,
               "of compute capability 7.5: they were built for sm_80, sm_90, PTX of compute_90 "
               "(old) [unavailable kernels=norm.cuh]",
               [&] { throw detail::no_image(file, 75, " (old)"); });
}

TEST(DeviceKernels, FoundByDeviceTypeFromTheFirstRegistrationOn) {
  const at::Device device(at::DeviceType::PrivateUse1, 0);
  EXPECT_EQ(device_kernels(device), nullptr);
  EXPECT_EQ(device_kernels(at::kCPU), nullptr);
  auto made = std::make_unique<EmulatedKernels>(1, device.type());
  const DeviceKernels* first = made.get();
  register_device_kernels(std::move(made));
  EXPECT_EQ(device_kernels(device), first);
  register_device_kernels(std::make_unique<EmulatedKernels>(2, device.type()));
  EXPECT_EQ(device_kernels(device), first);
  EXPECT_EQ(device_kernels(at::kCPU), nullptr);
}

TEST(DeviceKernels, AModuleOfAnotherVersionIsRefused) {
  expect_error(ErrorCode::kUnavailable, kDeviceKernelsFunction,
               [] { register_module_kernels(SharedModule("libm.so.6")); });
}

class Launching : public testing::Test {
 protected:
  void launch(const char* name, const Launch& shape, int64_t n) {
    Launch launch = shape;
    launch.name = name;
    launch_kernel(kernels_, at::kCPU, launch, gate_.data(), up_.data(), y_.data(), n);
  }

  static constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  // Aligned, as LibTorch's memory is.
  EmulatedKernels kernels_{3};
  std::vector<float> gate_ = std::vector<float>(1000, 2.0f), up_ = std::vector<float>(1000, 3.0f);
  std::vector<float> y_ = std::vector<float>(1000, kNan);
};

TEST_F(Launching, ComputesOnAllBlocks) {
  launch("retort_gated_silu_f32", {.grid_x = 3, .block = 64}, 999);
  const float expected = 3 * 2 / (1 + std::exp(-2.0f));
  for (int64_t i = 0; i < 999; ++i)
    ASSERT_NEAR(y_[to_size(i)], expected, 1e-5) << i;
  EXPECT_TRUE(std::isnan(y_[999]));
  EXPECT_EQ(kernels_.num_launches(), 1);
}

TEST_F(Launching, NothingWhereThereAreNoBlocks) {
  launch("retort_gated_silu_f32", {.grid_x = 0}, 0);
  EXPECT_TRUE(std::isnan(y_[0]));
  EXPECT_EQ(kernels_.num_launches(), 0);
}

TEST_F(Launching, NamesWhatIsWrong) {
  expect_error(ErrorCode::kMismatch, "kernel=retort_nothing",
               [&] { launch("retort_nothing", {}, 1); });
  expect_error(ErrorCode::kInvalidArgument, "threads=1024 max=512",
               [&] { launch("retort_gated_silu_f32", {.block = 1024}, 1); });
  const Launch shape{.name = "retort_gated_silu_f32"};
  expect_error(ErrorCode::kMismatch, "arguments have 8, 4 bytes, those of the kernel 8, 8, 8, 8",
               [&] { launch_kernel(kernels_, at::kCPU, shape, y_.data(), 1); });
}

TEST_F(Launching, OpensTheMemoryAround) {
  int opened = 0;
  EmulatedKernels kernels(4, at::kCPU, [&](const std::function<void()>& run) {
    ++opened;
    run();
    EXPECT_FALSE(std::isnan(y_[0]));
  });
  const int64_t n = 1000;
  launch_kernel(kernels, at::kCPU, {.name = "retort_gated_silu_f32"}, gate_.data(), up_.data(),
                y_.data(), n);
  EXPECT_EQ(opened, 1);
}

TEST(EmulatedKernels, AllHaveNamesOfTheProject) {
  EXPECT_GT(emulator::emulated_kernels().size(), 10u);
  for (const auto& [name, kernel] : emulator::emulated_kernels()) {
    EXPECT_TRUE(name.starts_with("retort_")) << name;
    EXPECT_GT(kernel.max_threads, 0) << name;
    EXPECT_LE(kernel.max_threads, 1024) << name;
    EXPECT_EQ(kernel.max_threads % 32, 0) << name;
  }
}

}  // namespace
}  // namespace retort::kernels

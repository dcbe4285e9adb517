// The CUDA module's part for kernels: loads the images that were built into it, and launches.
#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "base/error.h"
#include "kernels/detail/kernel_images.h"
#include "kernels/device_kernels.h"

namespace retort::kernels::cuda {
namespace {

using detail::KernelFile;
using detail::KernelImage;
using KernelTable = std::unordered_map<std::string_view, cudaKernel_t>;

// A kernel that takes more shared memory than this must consent to it.
constexpr int64_t kSharedBytesByDefault = 48 << 10;
// A kernel's own arrays may take this much of it.
constexpr int64_t kStaticSharedBytes = 2 << 10;

int capability_of(c10::DeviceIndex index) {
  int major = 0;
  int minor = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index));
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index));
  return 10 * major + minor;
}

// Loads the kernels of all files, for cards of this capability. The libraries stay loaded until the
// process ends.
KernelTable load_kernels(int capability) {
  KernelTable kernels;
  for (const KernelFile& file : detail::kernel_files()) {
    const KernelImage* image = detail::choose_image(file.images, capability);
    if (image == nullptr) throw detail::no_image(file, capability, "");

    cudaLibrary_t library = nullptr;
    const cudaError_t status =
        cudaLibraryLoadData(&library, image->data, nullptr, nullptr, 0, nullptr, nullptr, 0);
    if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorUnsupportedPtxVersion) {
      cudaGetLastError();  // or the next call would report it
      throw detail::no_image(file, capability,
                             std::string(" (") + cudaGetErrorString(status) + ")");
    }
    C10_CUDA_CHECK(status);
    for (const char* name : file.entries)
      C10_CUDA_CHECK(cudaLibraryGetKernel(&kernels[name], library, name));
  }
  return kernels;
}

class CudaKernels final : public DeviceKernels {
 public:
  at::DeviceType device_type() const override { return at::kCUDA; }

  void prepare(const at::Device& device) override {
    const c10::cuda::CUDAGuard guard(device);
    kernels_of(guard.current_device().index());
  }

  int64_t capability(const at::Device& device) override {
    const c10::cuda::CUDAGuard guard(device);
    const c10::DeviceIndex index = guard.current_device().index();
    const std::lock_guard lock(mutex_);
    const auto [found, is_new] = capabilities_.try_emplace(index, 0);
    if (is_new) found->second = capability_of(index);
    return found->second;
  }

  int64_t max_shared_bytes(const at::Device& device) override {
    int bytes = 0;
    C10_CUDA_CHECK(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                          device.has_index() ? device.index() : 0));
    return bytes - kStaticSharedBytes;
  }

  void launch(const Launch& launch, const at::Device& device) override {
    if (launch.is_empty()) return;
    const c10::cuda::CUDAGuard guard(device);
    const c10::DeviceIndex index = guard.current_device().index();
    const KernelTable& kernels = kernels_of(index);
    const auto found = kernels.find(launch.name);
    if (found == kernels.end())
      throw Error(ErrorCode::kMismatch, "there is no such kernel").with("kernel", launch.name);

    const void* kernel = found->second;
    if (launch.shared_bytes > kSharedBytesByDefault)
      C10_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(launch.shared_bytes)));
    const dim3 grid(static_cast<unsigned>(launch.grid_x), static_cast<unsigned>(launch.grid_y));
    const dim3 block(static_cast<unsigned>(launch.block));
    C10_CUDA_CHECK(cudaLaunchKernel(kernel, grid, block, launch.args,
                                    static_cast<size_t>(launch.shared_bytes),
                                    c10::cuda::getCurrentCUDAStream(index)));
  }

 private:
  // They are loaded at the first use of a device; a map's elements stay where they are.
  const KernelTable& kernels_of(c10::DeviceIndex index) {
    const std::lock_guard lock(mutex_);
    const KernelTable*& kernels = of_device_[index];
    if (kernels == nullptr) {
      const int capability = capability_of(index);
      auto loaded = of_capability_.find(capability);
      if (loaded == of_capability_.end())
        loaded = of_capability_.emplace(capability, load_kernels(capability)).first;
      kernels = &loaded->second;
    }
    return *kernels;
  }

  std::mutex mutex_;
  std::map<int, KernelTable> of_capability_;
  std::map<c10::DeviceIndex, const KernelTable*> of_device_;
  std::map<c10::DeviceIndex, int> capabilities_;
};

}  // namespace
}  // namespace retort::kernels::cuda

// The module is entered here, by the name in kDeviceKernelsFunction.
extern "C" __attribute__((visibility("default"))) retort::kernels::DeviceKernels*
retort_cuda_kernels_2() {
  return std::make_unique<retort::kernels::cuda::CudaKernels>().release();
}

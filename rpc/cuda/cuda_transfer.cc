// The CUDA module's part for the RPC layer: TensorPipe's CUDA channels, and the streams on which
// they copy.
#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <tensorpipe/tensorpipe.h>
#include <tensorpipe/tensorpipe_cuda.h>

#include "base/error.h"
#include "rpc/detail/device_transfer.h"

namespace retort::rpc::cuda {
namespace {

using c10::cuda::CUDAStream;

// The streams of one device. Computation is on the device's default stream; collectives have
// streams of NCCL's process groups.
struct Streams {
  CUDAStream compute, sending, receiving;
};

// As NVIDIA's tools write it: "GPU-2f0bd9a4-....".
std::string uuid_text(const cudaUUID_t& uuid) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text = "GPU-";
  for (size_t byte = 0; byte < sizeof uuid.bytes; ++byte) {
    if (byte == 4 || byte == 6 || byte == 8 || byte == 10) text += '-';
    const auto value = static_cast<unsigned char>(uuid.bytes[byte]);
    text += kDigits[value >> 4];
    text += kDigits[value & 15];
  }
  return text;
}

void CUDART_CB run_arrived(void* data) {
  const std::unique_ptr<std::function<void()>> arrived(static_cast<std::function<void()>*>(data));
  (*arrived)();
}

class CudaTransfer final : public detail::DeviceTransfer {
 public:
  at::DeviceType device_type() const override { return at::kCUDA; }
  std::string wire_type() const override { return tensorpipe::kCudaDeviceType; }
  int64_t num_devices() const override { return c10::cuda::device_count(); }

  const std::vector<std::string>& device_ids() override {
    std::lock_guard lock(mutex_);
    for (int index = static_cast<int>(ids_.size()); index < num_devices(); ++index) {
      cudaDeviceProp properties{};
      C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
      ids_.push_back(uuid_text(properties.uuid));
    }
    return ids_;
  }

  std::vector<ChannelMaker> channels() override {
    // One channel works inside a process, one inside a host, and one anywhere.
    return {
        {"cuda_xth", "inside of a process", [] { return tensorpipe::channel::cuda_xth::create(); }},
        {"cuda_ipc", "from device to device",
         [] { return tensorpipe::channel::cuda_ipc::create(); }},
        {"cuda_basic", "through pinned host memory", [] {
           return tensorpipe::channel::cuda_basic::create(tensorpipe::channel::basic::create());
         }}};
  }

  void begin_send(const at::Tensor& tensor) override {
    const c10::DeviceIndex index = tensor.device().index();
    const CUDAStream sending = streams(index).sending;
    // The copy waits for what computes the tensor, and the allocator keeps the memory until the
    // copy has ended.
    at::cuda::CUDAEvent written(cudaEventDisableTiming);
    written.record(c10::cuda::getCurrentCUDAStream(index));
    written.block(sending);
    c10::cuda::CUDACachingAllocator::recordStream(tensor.storage().data_ptr(), sending);
  }

  tensorpipe::Buffer send_buffer(const at::Tensor& tensor) override {
    return tensorpipe::CudaBuffer{const_cast<void*>(tensor.const_data_ptr()),
                                  streams(tensor.device().index()).sending.stream()};
  }

  at::Tensor allocate(const std::vector<int64_t>& sizes, at::ScalarType dtype,
                      int64_t index) override {
    const auto device = static_cast<c10::DeviceIndex>(index);
    const Streams& s = streams(device);
    c10::InferenceMode ordinary(false);
    // The allocator reuses memory in the order of the stream it was asked on: that of the copies
    // that write it.
    const c10::cuda::CUDAStreamGuard guard(s.receiving);
    at::Tensor tensor =
        at::empty(sizes, at::TensorOptions().dtype(dtype).device(at::Device(at::kCUDA, device)));
    c10::cuda::CUDACachingAllocator::recordStream(tensor.storage().data_ptr(), s.compute);
    return tensor;
  }

  tensorpipe::Buffer receive_buffer(const at::Tensor& tensor) override {
    return tensorpipe::CudaBuffer{tensor.mutable_data_ptr(),
                                  streams(tensor.device().index()).receiving.stream()};
  }

  void when_arrived(const std::vector<at::Tensor>& tensors,
                    std::function<void()> arrived) override {
    // Events chain the streams, so that one host function behind the last of them tells of all
    // copies.
    std::optional<CUDAStream> last;
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.is_cuda()) continue;
      const CUDAStream& stream = streams(tensor.device().index()).receiving;
      if (last && *last != stream) {
        at::cuda::CUDAEvent event(cudaEventDisableTiming);
        event.record(*last);
        event.block(stream);
      }
      last = stream;
    }
    RETORT_CHECK(last) << "no tensor on a device";
    const c10::cuda::CUDAGuard guard(last->device_index());
    // The holder gives the function up only when the driver has taken it.
    auto holder = std::make_unique<std::function<void()>>(std::move(arrived));
    C10_CUDA_CHECK(cudaLaunchHostFunc(last->stream(), run_arrived, holder.get()));
    holder.release();
  }

 private:
  // Made at the first use of a device; a map's elements stay where they are.
  const Streams& streams(c10::DeviceIndex index) {
    std::lock_guard lock(mutex_);
    const auto found = streams_.find(index);
    if (found != streams_.end()) return found->second;
    const auto pool = [index] {
      return c10::cuda::getStreamFromPool(/*isHighPriority=*/false, index);
    };
    return streams_.emplace(index, Streams{c10::cuda::getDefaultCUDAStream(index), pool(), pool()})
        .first->second;
  }

  std::mutex mutex_;
  std::vector<std::string> ids_;
  std::map<c10::DeviceIndex, Streams> streams_;
};

}  // namespace
}  // namespace retort::rpc::cuda

// The module is entered here, by the name in detail::kDeviceTransferFunction.
extern "C" __attribute__((visibility("default"))) retort::rpc::detail::DeviceTransfer*
retort_cuda_transfer_4() {
  return std::make_unique<retort::rpc::cuda::CudaTransfer>().release();
}

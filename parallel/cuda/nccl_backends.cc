// The CUDA module's part for worlds: devices, and one ProcessGroupNCCL for each group.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "base/error.h"
#include "base/sizes.h"
#include "parallel/detail/device_backends.h"

namespace retort::parallel::cuda {
namespace {

// 13000 -> "13.0", 22809 -> "2.28.9"
std::string cuda_version(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}
std::string nccl_version(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

// Sets what c10d reads from the environment when it makes a process group. The watch of
// parallel/detail/device_watch.h judges timeouts and aborts; c10d's own would end the process, and
// a call that waits on the host would keep computation and communication from overlapping. c10d's
// watchdog finds timeouts all the same. It then sleeps for four times
// TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC, a minute, with a lock held that queueing takes, and the end
// of a group waits for it. Values that the user has set stay.
void set_c10d_defaults() {
  for (const auto& [name, value] :
       {std::pair{"TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"},
        std::pair{"TORCH_NCCL_BLOCKING_WAIT", "0"}, std::pair{"TORCH_NCCL_ENABLE_MONITORING", "0"},
        std::pair{"TORCH_NCCL_DUMP_ON_TIMEOUT", "0"},
        std::pair{"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "0"}})
    ::setenv(name, value, 0);
}

void check(ncclResult_t result, const char* what) {
  if (result != ncclSuccess)
    throw Error(ErrorCode::kCollective, std::string(what) + ": " + ncclGetErrorString(result));
}

// abort() of the base class aborts on a thread that it starts. Neither would that thread belong to
// NCCL's group of calls here, nor can it set its device while the context's lock is held.
class NcclGroup final : public c10d::ProcessGroupNCCL {
 public:
  using ProcessGroupNCCL::abortComms;
  using ProcessGroupNCCL::ProcessGroupNCCL;
};

class NcclBackends final : public detail::DeviceBackends {
 public:
  at::DeviceType device_type() const override { return at::kCUDA; }

  std::string versions() const override {
    int runtime = 0;
    int nccl = 0;
    C10_CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
    if (ncclGetVersion(&nccl) != ncclSuccess)
      throw Error(ErrorCode::kUnavailable, "NCCL does not tell its version");
    return "CUDA " + cuda_version(runtime) + ", NCCL " + nccl_version(nccl);
  }

  int64_t num_devices() const override { return c10::cuda::device_count(); }

  void use_device(int64_t index) override {
    RETORT_CHECK(index >= 0 && index < num_devices())
        << "device " << index << " of " << num_devices();
    RETORT_CHECK(device_ < 0 || device_ == index)
        << "a process has one device; it has " << device_ << " already";
    RETORT_CHECK(at::hasCUDA())
        << "LibTorch looked for CUDA before the module was opened, and does so only once";
    set_c10d_defaults();
    c10::cuda::set_device(static_cast<c10::DeviceIndex>(index));
    // This call starts the allocator, the random number generators and the pools of library
    // handles.
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    device_ = index;
  }

  void synchronize() override {
    try {
      c10::cuda::device_synchronize();
    } catch (const std::exception& e) {
      throw Error(ErrorCode::kCollective, "the device reports an error: " + std::string(e.what()));
    }
  }

  int64_t peak_bytes() const override {
    // Statistic 0 is that of blocks of all sizes.
    return c10::cuda::CUDACachingAllocator::getDeviceStats(static_cast<c10::DeviceIndex>(device_))
        .allocated_bytes[0]
        .peak;
  }

  detail::DeviceMemory memory() const override {
    size_t free = 0;
    size_t total = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return {.free = static_cast<int64_t>(free), .total = static_cast<int64_t>(total)};
  }

  std::vector<int64_t> contexts() const override {
    std::vector<int64_t> found;
    for (c10::DeviceIndex index = 0; index < c10::cuda::device_count(); ++index)
      if (c10::cuda::hasPrimaryContext(index)) found.push_back(index);
    return found;
  }

  c10::intrusive_ptr<c10d::Backend> connect(const detail::DeviceGroupSpec& group,
                                            const c10::intrusive_ptr<c10d::Store>& store) override {
    RETORT_CHECK(device_ >= 0) << "use_device() comes before connect()";
    auto options = c10d::ProcessGroupNCCL::Options::create(group.high_priority);
    options->timeout = group.timeout;
    options->group_name = group.name;
    auto backend = c10::make_intrusive<NcclGroup>(store, group.position, to_int(group.ranks.size()),
                                                  std::move(options));
    backend->setGroupDesc(group.name);
    backend->setBoundDeviceId(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device_)));
    // All ranks connect now, in one order, and not at the first collective: a group that cannot
    // connect is found before the first step.
    backend->eagerConnectSingleDevice(
        at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device_)));
    return backend;
  }

  void use_device_in_thread() override {
    if (device_ >= 0) c10::cuda::set_device(static_cast<c10::DeviceIndex>(device_));
  }

  void abort(const std::vector<c10::intrusive_ptr<c10d::Backend>>& groups) override {
    // Every step is tried even if an earlier one fails, because a group that is not aborted goes on
    // hanging.
    std::exception_ptr first;
    const auto attempt = [&first](auto&& body) {
      try {
        body();
      } catch (...) {
        if (!first) first = std::current_exception();
      }
    };

    // Each ncclCommAbort sets the flag at which its kernels end; only ncclGroupEnd waits for the
    // device. So all flags are set before anything waits (pytorch #119797).
    attempt([] { check(ncclGroupStart(), "ncclGroupStart"); });
    for (const auto& group : groups)
      attempt([&] { static_cast<NcclGroup&>(*group).abortComms("aborted by the device watch"); });
    attempt([] { check(ncclGroupEnd(), "ncclGroupEnd"); });

    // Nothing is left to abort; this ends the threads of c10d.
    for (const auto& group : groups)
      attempt([&] { group->abort(); });
    if (first) std::rethrow_exception(first);
  }

 private:
  int64_t device_ = -1;
};

}  // namespace
}  // namespace retort::parallel::cuda

// The module is entered here, by the name in detail::kDeviceBackendsFunction.
extern "C" __attribute__((visibility("default"))) retort::parallel::detail::DeviceBackends*
retort_cuda_backends_7() {
  return std::make_unique<retort::parallel::cuda::NcclBackends>().release();
}

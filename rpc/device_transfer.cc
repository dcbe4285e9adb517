#include "rpc/device_transfer.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "base/shared_module.h"
#include "rpc/detail/device_channels.h"
#include "rpc/detail/device_transfer.h"

namespace retort::rpc {

std::shared_ptr<detail::DeviceTransfer> load_device_transfer(const std::string& path) {
  const SharedModule module(
      path.empty() ? module_beside_program("libretort_cuda.so", "RETORT_CUDA_MODULE") : path);
  return std::shared_ptr<detail::DeviceTransfer>(
      module.function<detail::MakeDeviceTransfer>(detail::kDeviceTransferFunction)());
}

std::vector<DeviceChannelState> device_channels(detail::DeviceTransfer& devices) {
  std::vector<DeviceChannelState> states;
  for (const detail::DeviceChannel& channel : detail::make_device_channels(devices)) {
    states.push_back({.name = channel.name, .how = channel.how, .problem = channel.problem});
    if (!channel.context) continue;
    channel.context->close();
    channel.context->join();
  }
  return states;
}

void use_on_current_stream(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu() || tensor.numel() == 0) return;
  const c10::impl::VirtualGuardImpl guard(tensor.device().type());
  guard.recordDataPtrOnStream(tensor.storage().data_ptr(), guard.getStream(tensor.device()));
}

void use_device_in_thread(const at::Device& device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
}

at::TensorOptions staging_options(at::Device device) {
  return at::TensorOptions().device(at::kCPU).pinned_memory(!device.is_cpu());
}

at::Tensor host_copy(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor.contiguous();
  return at::empty(tensor.sizes(), staging_options(tensor.device()).dtype(tensor.scalar_type()))
      .copy_(tensor);
}

}  // namespace retort::rpc

#include "rpc/device_transfer.h"

#include "base/shared_module.h"
#include "rpc/detail/device_transfer.h"

namespace retort::rpc {

std::shared_ptr<detail::DeviceTransfer> load_device_transfer(const std::string& path) {
  const SharedModule module(
      path.empty() ? module_beside_program("libretort_cuda.so", "RETORT_CUDA_MODULE") : path);
  return std::shared_ptr<detail::DeviceTransfer>(
      module.function<detail::MakeDeviceTransfer>(detail::kDeviceTransferFunction)());
}

}  // namespace retort::rpc

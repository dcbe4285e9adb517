#include "rpc/network/message_pipe.h"

#include <algorithm>

namespace retort::rpc::detail {

uint64_t WireMessage::size_bytes() const {
  uint64_t bytes = payload.size();
  for (const auto& tensor : tensors)
    bytes += tensor.nbytes();
  return bytes;
}

bool WireMessage::on_device() const {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& tensor) { return !tensor.is_cpu(); });
}

}  // namespace retort::rpc::detail

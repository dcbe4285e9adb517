// Memory for tensors that arrive, used again: fresh pages cost more than the copy into them. Any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include "rpc/detail/tensor_format.h"

namespace retort::rpc::detail {

class ReceivePool : public std::enable_shared_from_this<ReceivePool> {
 public:
  // Keeps at most `max_idle_bytes` that no tensor uses.
  explicit ReceivePool(uint64_t max_idle_bytes) : max_idle_bytes_(max_idle_bytes) {}
  ~ReceivePool();
  ReceivePool(const ReceivePool&) = delete;
  ReceivePool& operator=(const ReceivePool&) = delete;

  // Allocates as TensorFormat::allocate() does; the memory comes back when the last use of the
  // tensor's storage ends.
  at::Tensor allocate(const TensorFormat& format);
  uint64_t idle_bytes() const;

 private:
  struct Block {
    void* data;
    uint64_t bytes;
  };
  Block take(uint64_t bytes);
  void give_back(Block block);

  const uint64_t max_idle_bytes_;
  mutable std::mutex mutex_;
  std::deque<Block> idle_;  // longest unused first
  uint64_t idle_bytes_ = 0;
};

}  // namespace retort::rpc::detail

#include "rpc/detail/receive_pool.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include <sys/mman.h>

#include <cstdlib>
#include <new>
#include <vector>

namespace retort::rpc::detail {
namespace {

constexpr uint64_t kMinPooledBytes = 256 << 10;  // below, malloc reuses its own memory
constexpr uint64_t kPage = 4096, kHugePage = 2 << 20;
// From here on blocks lie in huge pages: one fault takes the place of 512.
constexpr uint64_t kMinHugeBytes = 4 << 20;

void* fresh_block(uint64_t bytes) {
  const uint64_t align = bytes >= kMinHugeBytes ? kHugePage : kPage;
  void* data = std::aligned_alloc(align, (bytes + align - 1) / align * align);
  if (!data) throw std::bad_alloc();
  // The advice is only a hint, so nothing is lost where the system refuses it.
  if (align == kHugePage) ::madvise(data, bytes, MADV_HUGEPAGE);
  return data;
}

}  // namespace

ReceivePool::~ReceivePool() {
  for (const auto& block : idle_)
    std::free(block.data);
}

at::Tensor ReceivePool::allocate(const TensorFormat& format) {
  const uint64_t bytes = format.size_bytes();
  if (bytes < kMinPooledBytes) return format.allocate();
  // A tensor that is made in inference mode could not take part in autograd later.
  c10::InferenceMode ordinary(false);
  const Block block = take(bytes);
  return at::from_blob(
      block.data, format.sizes,
      [pool = shared_from_this(), block](void*) { pool->give_back(block); },
      at::TensorOptions().dtype(format.dtype));
}

uint64_t ReceivePool::idle_bytes() const {
  std::lock_guard lock(mutex_);
  return idle_bytes_;
}

// Takes the most recently used block that fits without wasting more than a quarter, else a new one.
ReceivePool::Block ReceivePool::take(uint64_t bytes) {
  {
    std::lock_guard lock(mutex_);
    for (auto block = idle_.rbegin(); block != idle_.rend(); ++block) {
      if (block->bytes < bytes || block->bytes - bytes > bytes / 4) continue;
      const Block found = *block;
      idle_bytes_ -= found.bytes;
      idle_.erase(std::next(block).base());
      return found;
    }
  }
  const uint64_t rounded = (bytes + kPage - 1) / kPage * kPage;
  return {fresh_block(rounded), rounded};
}

void ReceivePool::give_back(Block block) {
  std::vector<void*> released;
  {
    std::lock_guard lock(mutex_);
    idle_.push_back(block);
    idle_bytes_ += block.bytes;
    while (idle_bytes_ > max_idle_bytes_) {
      released.push_back(idle_.front().data);
      idle_bytes_ -= idle_.front().bytes;
      idle_.pop_front();
    }
  }
  // The blocks are freed without the lock, so that no other thread waits for the system.
  for (void* data : released)
    std::free(data);
}

}  // namespace retort::rpc::detail

#include "tests/support/memory/peak_memory.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

namespace retort::test {
namespace {

class Counter final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* ptr, int64_t alloc_size, size_t, size_t,
                         c10::Device device) override {
    if (!device.is_cpu()) return;
    const std::lock_guard lock(mutex_);
    // A block that is known already was freed where nobody counted.
    if (const auto known = blocks_.find(ptr); known != blocks_.end()) {
      live_ -= known->second;
      blocks_.erase(known);
    }
    if (alloc_size <= 0) return;
    blocks_.emplace(ptr, alloc_size);
    live_ += alloc_size;
    peak_ = std::max(peak_, live_);
  }
  bool memoryProfilingEnabled() const override { return true; }

  int64_t peak() const {
    const std::lock_guard lock(mutex_);
    return peak_;
  }
  int64_t live() const {
    const std::lock_guard lock(mutex_);
    return live_;
  }
  void reset() {
    const std::lock_guard lock(mutex_);
    blocks_.clear();
    live_ = peak_ = 0;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<void*, int64_t> blocks_;
  int64_t live_ = 0, peak_ = 0;
};

}  // namespace

struct PeakMemory::Impl {
  std::shared_ptr<Counter> counter = std::make_shared<Counter>();
  c10::DebugInfoGuard guard{c10::DebugInfoKind::PROFILER_STATE, counter};
};

PeakMemory::PeakMemory() : impl_(std::make_unique<Impl>()) {}
PeakMemory::~PeakMemory() = default;
int64_t PeakMemory::peak_bytes() const { return impl_->counter->peak(); }
int64_t PeakMemory::live_bytes() const { return impl_->counter->live(); }
void PeakMemory::reset() { impl_->counter->reset(); }

}  // namespace retort::test

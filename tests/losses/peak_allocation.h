// Peak bytes that LibTorch's CPU allocator holds while an object of this type lives, counted on its
// thread.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdint>
#include <memory>

namespace retort::losses {

class PeakAllocation {
 public:
  PeakAllocation()
      : meter_(std::make_shared<Meter>()), guard_(c10::DebugInfoKind::PROFILER_STATE, meter_) {}

  int64_t peak_bytes() const { return meter_->peak; }        // above what was held at construction
  int64_t largest_bytes() const { return meter_->largest; }  // of a single allocation

 private:
  struct Meter : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
      held += size;
      peak = std::max(peak, held);
      largest = std::max(largest, size);
    }
    bool memoryProfilingEnabled() const override { return true; }

    int64_t held = 0, peak = 0, largest = 0;
  };

  std::shared_ptr<Meter> meter_;
  c10::DebugInfoGuard guard_;
};

}  // namespace retort::losses

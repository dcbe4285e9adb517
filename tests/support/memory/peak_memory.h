// Peak of the memory that LibTorch's CPU allocator hands out, for tests and benchmarks of memory
// claims.
//
//   PeakMemory peak;
//   loss = chunked_loss(...); loss.backward();
//   EXPECT_LT(peak.peak_bytes(), 64 << 20);
//
// Counts tensors allocated since construction (or reset()) by this thread, and by autograd's
// threads on its behalf; what existed before counts nothing, not even when it is freed. Threads:
// destroy it on the thread that made it, last made first destroyed; an inner PeakMemory hides its
// allocations from the outer one.
#pragma once

#include <cstdint>
#include <memory>

namespace retort::test {

class PeakMemory {
 public:
  PeakMemory();
  ~PeakMemory();
  PeakMemory(const PeakMemory&) = delete;
  PeakMemory& operator=(const PeakMemory&) = delete;

  int64_t peak_bytes() const;  // the most that was alive at one time
  int64_t live_bytes() const;  // alive now
  void reset();                // forgets what is alive; the peak starts again at 0

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace retort::test

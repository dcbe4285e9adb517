// Runs CUDA kernels on the CPU, to find what is wrong with them rather than to be fast: the same
// sources, compiled by the C++ compiler (tests/kernels/dialect.h).
//
// Each thread of a block is a fiber, and one runs at a time, from one meeting point (a barrier of
// the block or the warp, a shuffle, a ballot) to the next. Which one is drawn: where a barrier is
// missing, another seed gives other numbers. Blocks run one after the other, in a drawn order.
// Shared memory is full of NaN when a block begins.
//
// Threads that meet must do so at one place of the source: stricter than a device, which counts
// arrivals. It shows neither speed, nor what two threads do to each other between the meeting
// points, nor (but under the address sanitizer) addresses that are out of bounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <random>
#include <source_location>
#include <string>
#include <vector>

#include "tests/kernels/fiber.h"

namespace retort::emulator {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
  unsigned count() const { return x * y * z; }
};

// What threads do where they meet.
enum class Meeting { kBlockBarrier, kWarpBarrier, kShuffle, kBallot };

// What one thread brings to a meeting.
struct Arrival {
  Meeting meeting = Meeting::kBlockBarrier;
  unsigned lanes = 0;  // of its warp, those who meet
  uint64_t value = 0;  // its bits for a shuffle; 0 or 1 for a ballot
  int source = 0;      // the lane whose value it takes
  std::source_location where;
};

// Threads: any; those who run kernels at the same time take turns, as the memory that kernels share
// is the process's.
class Emulator {
 public:
  explicit Emulator(uint64_t seed) : random_(seed) {}

  // Runs `thread` for each thread of the grid.
  //
  // Errors, which name the kernel, the block and the thread: kInvalidArgument for a block that no
  // device has; kMismatch where threads wait for others that do not come, where those who meet are
  // at different places of the source, and for an address that is not aligned. Threads that have
  // ended are not waited for, as on a device. What `thread` itself throws, from any thread.
  void run(const std::string& name, Dim3 grid, Dim3 block, size_t shared_bytes,
           const std::function<void()>& thread);

  // For the thread that runs: waits for the others. What a shuffle or a ballot brings; a lane that
  // has ended or does not meet has no value, all bits 1.
  static uint64_t meet(const Arrival& arrival);
  static int lane();
  static void* dynamic_shared();
  // An array of the block's static shared memory, which the thread is about to use.
  static void begin_shared(void* array, size_t bytes);
  // Throws unless the address is a multiple of `alignment`.
  static void check_alignment(const void* address, size_t alignment);

 private:
  enum class State { kReady, kWaiting, kEnded };
  struct Thread {
    Fiber fiber;
    State state = State::kEnded;
    Arrival arrival;
    uint64_t result = 0;
  };

  void run_block(const std::function<void()>& body);
  void resume(unsigned index);
  void settle(unsigned index);
  void settle_block();
  void settle_warp(unsigned warp, unsigned lanes);
  void release(unsigned index);
  uint64_t result_of(const Thread& thread, const std::vector<unsigned>& present, unsigned warp);
  [[noreturn]] void fail_stuck();
  [[noreturn]] void fail(const std::string& what);
  void check_same_place(unsigned a, unsigned b);
  std::string describe(unsigned index) const;

  static Emulator* running_;

  std::mt19937_64 random_;
  std::deque<Thread> threads_;  // their stacks are kept for later blocks
  std::string name_;
  unsigned count_ = 0;    // threads of a block
  unsigned live_ = 0;     // of this block, those that have not ended
  unsigned waiting_ = 0;  // of them, those at the block's barrier
  unsigned current_ = 0;
  std::vector<unsigned> ready_;
  std::vector<char> shared_;   // dynamic
  std::vector<void*> arrays_;  // static, those of which this block has made use
  std::exception_ptr thrown_;
};

}  // namespace retort::emulator

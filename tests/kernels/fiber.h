// A function that runs on a stack of its own and stops where it says so: a thread of a GPU in the
// emulator.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>

namespace retort::emulator {

// Threads: one resumes it; it runs there.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next resume() begins `body`, which throws nothing and outlives the fiber's run. What ran
  // before, ended or not, is forgotten: nothing on its stack is destroyed.
  void start(const std::function<void()>& body);
  // Runs it until it suspends itself or ends.
  void resume();
  // On the fiber: back to resume().
  void suspend();
  bool has_ended() const { return ended_; }

 private:
  static void enter(unsigned high, unsigned low);

  char* stack_ = nullptr;
  const std::function<void()>* body_ = nullptr;
  bool ended_ = true;
  ucontext_t own_{}, resumer_{};
  // What the address sanitizer must know of the stack that is left.
  void* own_fake_stack_ = nullptr;
  void* resumer_fake_stack_ = nullptr;
  const void* resumer_stack_ = nullptr;
  size_t resumer_stack_bytes_ = 0;
};

}  // namespace retort::emulator

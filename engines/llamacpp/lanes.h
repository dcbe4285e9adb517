// Which sequence is scored on which slot of the server.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <set>

#include "base/deadline.h"
#include "base/future.h"
#include "engines/llamacpp/loop.h"

namespace retort::engines::llamacpp {

// A slot keeps the keys and values of the last prompt, so each prefix of a sequence costs one token
// as long as no other sequence comes between: one sequence has a slot to itself, others wait in
// order.
//
// Threads: the loop's.
class Lanes {
 public:
  explicit Lanes(Loop& loop) : loop_(loop) {}

  // The server's slots, 0 to count - 1. Those beyond are not given out any more.
  void set_count(int64_t count);
  // A slot, once one is free; kTimeout at `deadline`. It must be given back.
  Future<int64_t> acquire(Deadline deadline);
  void release(int64_t slot);

 private:
  struct Waiting {
    Promise<int64_t> promise;
    Future<Empty> timer;
  };
  void serve();

  Loop& loop_;
  int64_t count_ = 0;
  std::set<int64_t> free_, taken_;
  std::deque<std::shared_ptr<Waiting>> waiting_;
};

}  // namespace retort::engines::llamacpp

// Limits how many sequences are scored at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "base/deadline.h"
#include "base/future.h"
#include "engines/llamacpp/loop.h"

namespace retort::engines::llamacpp {

// A slot of the server keeps the keys and values of the last prompt, so each prefix of a sequence
// costs one token as long as no other sequence comes between: there are as many sequences under way
// as slots, others wait in order. Which slot a request goes to is the server's choice: the idle one
// whose last prompt is most like it. A request that names a slot (`id_slot`) takes the cache away
// from the one that runs there, whoever asked it, and that one then draws from another prompt: seen
// with the server of xllamacpp 2026.10.
//
// Threads: the loop's.
class SlotSemaphore {
 public:
  explicit SlotSemaphore(Loop& loop) : loop_(loop) {}

  // The server's slots.
  void set_count(int64_t count);
  // Once fewer sequences than slots are under way; kTimeout at `deadline`. Ended by release().
  Future<Empty> acquire(Deadline deadline);
  void release();

 private:
  struct Waiting {
    Promise<Empty> promise;
    Future<Empty> timer;
  };
  void serve();

  Loop& loop_;
  int64_t count_ = 0;
  int64_t taken_ = 0;
  std::deque<std::shared_ptr<Waiting>> waiting_;
};

}  // namespace retort::engines::llamacpp

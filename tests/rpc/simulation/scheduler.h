// Threads and time of a simulation: one thread of the system runs everything, a seed decides what
// runs next, and time passes only when nothing can run.
//
// How: this binary has its own steady_clock::now(), pthread_create() and pthread_cond_wait() (see
//   system_calls.cc). So production code runs as it is: its std::threads are coroutines here, its
//   condition variables give the turn to others, and Asio's timers fire on the simulated clock.
//   Nothing of that holds while there is no Scheduler.
// Time: whole milliseconds, from the same instant in every simulation.
// Order: what is ready at the same time (a thread, an event, a handler of an event loop) runs in an
//   order that the seed decides. The same seed gives the same order.
// Threads: one Scheduler at a time; everything on the thread that made it.
#pragma once

#include <ucontext.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/rpc/simulation/fiber_switch.h"

namespace retort::rpc::simulation {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// What stands still together: the threads and the event loop of a simulated process.
struct Freezable {
  bool frozen = false;
};

class Scheduler {
 public:
  explicit Scheduler(uint64_t seed);
  // All threads must have ended, unless a run failed.
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;
  // Null outside of a simulation.
  static Scheduler* current();

  Clock::time_point now() const { return now_; }
  milliseconds elapsed() const;
  // From 0, less than `below`.
  uint64_t pick(uint64_t below) { return below == 0 ? 0 : random_() % below; }
  // True in one of `in` cases.
  bool one_of(uint64_t in) { return pick(in) == 0; }
  milliseconds up_to(int64_t ms) { return milliseconds(pick(static_cast<uint64_t>(ms) + 1)); }
  // A number that depends on all that has happened.
  uint64_t fingerprint() const { return fingerprint_; }

  // Runs `event` at that time, outside of all threads.
  void after(milliseconds delay, std::function<void()> event);
  // A thread that stands still with `owner`, which may be null.
  void spawn(std::function<void()> body, Freezable* owner);
  void add_loop(boost::asio::io_context& io, Freezable* owner);
  void remove_loop(boost::asio::io_context& io);

  // Until `done`. False: nothing is left that could happen, or the time is over.
  bool run(const std::function<bool()>& done, milliseconds limit);
  // For thousands of loops: only those are looked at that have something to do. The order of a seed
  // is another one then.
  void look_only_where_work_is() { sparse_ = true; }
  // Lets a thread wait.
  void sleep(milliseconds time);
  size_t num_threads() const { return threads_.size(); }

  // For system_calls.cc. A thread waits for a wake() of `what`; false: `until` came first.
  bool on_thread() const { return running_ != nullptr; }
  bool wait(const void* what, std::optional<Clock::time_point> until);
  void wake(const void* what, bool all);
  // Returns its number; join() waits until it has ended, made() says whether it is one.
  uint64_t create(std::function<void()> body);
  void join(uint64_t thread);
  bool made(uint64_t thread) const { return thread > 0 && thread <= next_thread_; }
  void note_timeout(int timeout_ms) { polled_timeout_ms_ = timeout_ms; }

 private:
  struct Thread;
  struct Loop {
    boost::asio::io_context* io;
    boost::asio::detail::scheduler* asio;
    Freezable* owner;
    bool maybe_ready = true;
    std::optional<Clock::time_point> timer;  // its next one, as advance() has seen
  };
  static void enter();
  bool ready(const Loop& loop) const;

  bool step();
  bool advance(Clock::time_point limit);
  void resume(Thread& thread);
  void poll(Loop& loop);
  std::optional<Clock::time_point> next_timer(const Loop& loop);
  void mix(uint64_t what);

  std::mt19937_64 random_;
  Clock::time_point now_;
  std::map<std::pair<Clock::time_point, uint64_t>, std::function<void()>> events_;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<Loop> loops_;
  Thread* running_ = nullptr;
  ucontext_t main_{};
  LeftStack main_left_;
  StackMemory main_stack_;
  int polled_timeout_ms_ = 0;
  bool sparse_ = false;
  std::unordered_map<const void*, int> waiting_;  // for what, how many
  uint64_t fingerprint_ = 0, next_event_ = 0, next_thread_ = 0;
};

}  // namespace retort::rpc::simulation

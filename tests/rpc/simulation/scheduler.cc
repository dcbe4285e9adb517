#include "tests/rpc/simulation/scheduler.h"

#include <c10/core/AutogradState.h>
#include <cxxabi.h>

#include <algorithm>
#include <boost/asio/detail/epoll_reactor.hpp>
#include <boost/asio/detail/scheduler.hpp>
#include <cstring>

#include "base/error.h"
#include "base/future.h"

namespace retort::rpc::simulation {
namespace {

constexpr size_t kStackBytes = 2 << 20;  // only what is used becomes memory
// Where the simulated clock begins: far from zero, which means "never" to some.
constexpr Clock::time_point kBegin{std::chrono::hours(1000)};

Scheduler* the_scheduler = nullptr;

// What a thread of the system keeps of the exceptions that it handles, and LibTorch of its
// gradients; each of ours has its own.
struct Exceptions {
  void* caught = nullptr;
  unsigned uncaught = 0;
};
struct OfAThread {
  Exceptions exceptions;
  c10::AutogradState gradients{/*grad_mode=*/true, /*inference_mode=*/false, /*fw_grad_mode=*/true,
                               /*multithreading_enabled=*/true};
};
void exchange(OfAThread& with) {
  Exceptions mine;
  void* globals = __cxxabiv1::__cxa_get_globals();
  std::memcpy(&mine, globals, sizeof mine);
  std::memcpy(globals, &with.exceptions, sizeof mine);
  with.exceptions = mine;

  const c10::AutogradState gradients = c10::AutogradState::get_tls_state();
  c10::AutogradState::set_tls_state(with.gradients);
  with.gradients = gradients;
}

// What a thread waits for that joins another; no address is so low.
const void* end_of(uint64_t thread) { return reinterpret_cast<const void*>(thread); }

// Whether handlers wait in an Asio loop is nobody's to ask, but for friends and explicit
// instantiations.
using AsioScheduler = boost::asio::detail::scheduler;
using AsioQueue = boost::asio::detail::op_queue<boost::asio::detail::scheduler_operation>;
AsioQueue& queue_of(AsioScheduler& scheduler);
template <AsioQueue AsioScheduler::*Member>
struct OpenQueue {
  friend AsioQueue& queue_of(AsioScheduler& scheduler) { return scheduler.*Member; }
};
template struct OpenQueue<&AsioScheduler::op_queue_>;

// Stacks are used again: fresh ones cost a page fault for every page.
std::vector<std::unique_ptr<char[]>>& idle_stacks() {
  static std::vector<std::unique_ptr<char[]>> stacks;
  return stacks;
}
std::unique_ptr<char[]> take_stack() {
  auto& idle = idle_stacks();
  if (idle.empty()) return std::unique_ptr<char[]>(new char[kStackBytes]);
  auto stack = std::move(idle.back());
  idle.pop_back();
  return stack;
}

// Of a loop with a timer: its queue holds one entry of Asio's own.
bool has_handlers(AsioScheduler& scheduler) {
  using boost::asio::detail::op_queue_access;
  auto* const first = queue_of(scheduler).front();
  return first != nullptr && op_queue_access::next(first) != nullptr;
}

}  // namespace

struct Scheduler::Thread {
  uint64_t id = 0;
  std::function<void()> body;
  Freezable* owner = nullptr;
  std::unique_ptr<char[]> stack = take_stack();
  ucontext_t context{};
  LeftStack left;
  OfAThread own;
  // Waits for this, until then; ready if for nothing.
  const void* waits_for = nullptr;
  std::optional<Clock::time_point> until;
  bool timed_out = false;
  bool done = false;

  ~Thread() { idle_stacks().push_back(std::move(stack)); }
  bool frozen() const { return owner != nullptr && owner->frozen; }
};

Scheduler::Scheduler(uint64_t seed) : random_(seed), now_(kBegin) {
  RETORT_CHECK(the_scheduler == nullptr) << "one simulation at a time";
  the_scheduler = this;
}

Scheduler::~Scheduler() {
  events_.clear();  // they may hold loops, which take themselves out of loops_
  threads_.clear();
  the_scheduler = nullptr;
}

Scheduler* Scheduler::current() { return the_scheduler; }

milliseconds Scheduler::elapsed() const {
  return std::chrono::duration_cast<milliseconds>(now_ - kBegin);
}

void Scheduler::mix(uint64_t what) {
  fingerprint_ = (fingerprint_ ^ what) * 0x9E3779B97F4A7C15ULL;
  fingerprint_ ^= fingerprint_ >> 29;
}

void Scheduler::after(milliseconds delay, std::function<void()> event) {
  events_.emplace(std::pair(now_ + delay, random_() ^ next_event_++), std::move(event));
}

void Scheduler::spawn(std::function<void()> body, Freezable* owner) {
  auto thread = std::make_unique<Thread>();
  thread->id = ++next_thread_;
  thread->body = std::move(body);
  thread->owner = owner;
  getcontext(&thread->context);
  thread->context.uc_stack.ss_sp = thread->stack.get();
  thread->context.uc_stack.ss_size = kStackBytes;
  thread->context.uc_link = nullptr;
  makecontext(&thread->context, &Scheduler::enter, 0);
  threads_.push_back(std::move(thread));
}

uint64_t Scheduler::create(std::function<void()> body) {
  spawn(std::move(body), running_ ? running_->owner : nullptr);
  return next_thread_;
}

void Scheduler::enter() {
  Scheduler& scheduler = *the_scheduler;
  Thread& thread = *scheduler.running_;
  scheduler.main_stack_ = arrive(thread.left);
  thread.body();
  thread.body = nullptr;
  thread.done = true;
  scheduler.wake(end_of(thread.id), true);
  leave(nullptr, scheduler.main_stack_);
  swapcontext(&thread.context, &scheduler.main_);
}

void Scheduler::join(uint64_t thread) {
  const auto alive = [&] {
    return std::any_of(threads_.begin(), threads_.end(),
                       [&](const auto& other) { return other->id == thread && !other->done; });
  };
  while (alive())
    wait(end_of(thread), std::nullopt);
}

void Scheduler::add_loop(boost::asio::io_context& io, Freezable* owner) {
  loops_.push_back({.io = &io,
                    .asio = &boost::asio::use_service<AsioScheduler>(io),
                    .owner = owner,
                    .timer = {}});
}
void Scheduler::remove_loop(boost::asio::io_context& io) {
  std::erase_if(loops_, [&](const Loop& loop) { return loop.io == &io; });
}

void Scheduler::sleep(milliseconds time) {
  int nobody = 0;
  wait(&nobody, now_ + time);
}

bool Scheduler::wait(const void* what, std::optional<Clock::time_point> until) {
  RETORT_CHECK(running_) << "something waits where nothing may wait: on a loop, or in an event";
  Thread& thread = *running_;
  ++waiting_[what];
  thread.waits_for = what;
  thread.until = until;
  thread.timed_out = false;
  leave(&thread.left, main_stack_);
  swapcontext(&thread.context, &main_);
  main_stack_ = arrive(thread.left);
  if (--waiting_[what] == 0) waiting_.erase(what);
  return !thread.timed_out;
}

void Scheduler::wake(const void* what, bool all) {
  if (!waiting_.contains(what)) return;
  for (const auto& thread : threads_) {
    if (thread->waits_for != what || thread->done) continue;
    thread->waits_for = nullptr;
    thread->until.reset();
    if (!all) return;
  }
}

void Scheduler::resume(Thread& thread) {
  mix(thread.id);
  running_ = &thread;
  exchange(thread.own);
  leave(&main_left_, {thread.stack.get(), kStackBytes});
  swapcontext(&main_, &thread.context);
  arrive(main_left_);
  exchange(thread.own);
  running_ = nullptr;
  if (thread.done)
    std::erase_if(threads_, [&](const auto& other) { return other.get() == &thread; });
  if (sparse_) return;
  for (Loop& loop : loops_)
    loop.maybe_ready = true;
}

bool Scheduler::ready(const Loop& loop) const {
  if (loop.owner && loop.owner->frozen) return false;
  return loop.maybe_ready || (sparse_ && has_handlers(*loop.asio));
}

// One handler, or all that are there.
void Scheduler::poll(Loop& loop) {
  boost::asio::io_context* const io = loop.io;
  future_detail::LoopThreadScope scope;
  const size_t ran = pick(2) == 0 ? io->poll_one() : io->poll();
  mix(ran);
  // Handlers may have begun or ended loops; one that had nothing to do has changed nothing.
  for (Loop& other : loops_) {
    if (ran > 0 && (!sparse_ || other.io == io))
      other.maybe_ready = true;
    else if (other.io == io)
      other.maybe_ready = false;
  }
}

// What can run now: one of them, as the seed says. False if there is nothing.
bool Scheduler::step() {
  size_t num_threads = 0, num_loops = 0;
  for (const auto& thread : threads_) {
    if (thread->until && *thread->until <= now_) {
      thread->waits_for = nullptr;
      thread->until.reset();
      thread->timed_out = true;
    }
    num_threads += thread->waits_for == nullptr && !thread->frozen();
  }
  for (const Loop& loop : loops_)
    num_loops += ready(loop);
  const bool event = !events_.empty() && events_.begin()->first.first <= now_;
  const size_t num = num_threads + num_loops + (event ? 1 : 0);
  if (num == 0) return false;

  size_t choice = pick(num);
  for (const auto& thread : threads_)
    if (thread->waits_for == nullptr && !thread->frozen() && choice-- == 0)
      return resume(*thread), true;
  for (Loop& loop : loops_)
    if (ready(loop) && choice-- == 0) return poll(loop), true;
  auto first = events_.extract(events_.begin());
  mix(static_cast<uint64_t>(elapsed().count()));
  first.mapped()();
  if (sparse_) return true;
  for (Loop& loop : loops_)
    loop.maybe_ready = true;
  return true;
}

// Asio tells nobody when its next timer is due, but it asks epoll_wait to wait no longer.
std::optional<Clock::time_point> Scheduler::next_timer(const Loop& loop) {
  using Reactor = boost::asio::detail::epoll_reactor;
  constexpr int kAsioWaitsAtMost = 5 * 60 * 1000;
  boost::asio::detail::op_queue<boost::asio::detail::scheduler_operation> ready;
  polled_timeout_ms_ = kAsioWaitsAtMost;
  boost::asio::use_service<Reactor>(*loop.io).run(-1, ready);
  if (!ready.empty()) {
    boost::asio::use_service<boost::asio::detail::scheduler>(*loop.io).post_deferred_completions(
        ready);
    return now_;
  }
  if (polled_timeout_ms_ >= kAsioWaitsAtMost) return std::nullopt;
  return now_ + milliseconds(std::max(polled_timeout_ms_, 1));
}

bool Scheduler::advance(Clock::time_point limit) {
  std::optional<Clock::time_point> next;
  const auto consider = [&](const std::optional<Clock::time_point>& time) {
    if (time && (!next || *time < *next)) next = time;
  };
  if (!events_.empty()) consider(events_.begin()->first.first);
  for (const auto& thread : threads_)
    if (!thread->frozen()) consider(thread->until);
  for (Loop& loop : loops_) {
    if (loop.owner && loop.owner->frozen) continue;
    loop.timer = next_timer(loop);
    consider(loop.timer);
  }
  if (!next || *next > limit) return false;
  now_ = std::max<Clock::time_point>(now_, std::chrono::ceil<milliseconds>(*next));
  for (Loop& loop : loops_)
    loop.maybe_ready = !sparse_ || (loop.timer && *loop.timer <= now_);
  return true;
}

bool Scheduler::run(const std::function<bool()>& done, milliseconds limit) {
  const auto end = now_ + limit;
  while (!done())
    if (!step() && !advance(end)) return done();
  return true;
}

}  // namespace retort::rpc::simulation

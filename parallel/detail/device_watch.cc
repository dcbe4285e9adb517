#include "parallel/detail/device_watch.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "parallel/detail/c10d_impl.h"

namespace retort::parallel::detail {
namespace {

using Clock = std::chrono::steady_clock;

std::string in_ms(Clock::duration time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(time).count()) +
         " ms";
}

Error describe(ErrorCode code, const WatchedGroup& group, const std::string& what) {
  const WatchedGroup::Operation& operation = group.running.front();
  return Error(code, "a collective on the device failed: " + what +
                         "; the world is unusable, another rank may tell why")
      .with("group", group.name)
      .with("rank", group.rank)
      .with("op", operation.name)
      .with("sequence", operation.sequence)
      .with("shape", operation.shape)
      .with("last_queued", group.last_queued)
      .with("last_completed", group.last_completed);
}

// Returns the first line of the error that the work has failed with, or nothing while it has not
// failed.
std::optional<std::string> exception_of(c10d::Work& work) {
  const std::exception_ptr thrown = work.exception();
  if (!thrown) return std::nullopt;
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& e) {
    return first_line(e);
  } catch (...) {
    return "an unknown exception";
  }
}

struct Answer {
  bool completed = false;
  std::optional<std::string> failure;
};

// Asks whether the work has completed or failed. The calling thread may wait for the device.
Answer ask_work(c10d::Work& work) {
  // isCompleted() throws when the device itself has failed, because its events can no longer be
  // asked.
  try {
    Answer answer{.completed = work.isCompleted()};
    answer.failure = exception_of(work);
    return answer;
  } catch (const std::exception& e) {
    return {.failure = "the device cannot be asked for its state: " + first_line(e)};
  }
}

// The clock leaves the asking thread this much time beyond the timeout to report the failure,
// because that thread can tell more.
Clock::duration grace(const DeviceWatchOptions& options) { return 10 * options.interval; }

DeviceWatchOptions with_exit(DeviceWatchOptions options) {
  if (!options.exit_process) options.exit_process = [] { ::_exit(1); };
  return options;
}

}  // namespace

DeviceWatch::DeviceWatch(DeviceBackends& backends, DeviceWatchOptions options)
    : backends_(backends),
      options_(with_exit(std::move(options))),
      asking_([this] { ask(); }),
      clock_([this] { keep_time(); }),
      aborting_([this] { abort_when_told(); }) {}

DeviceWatch::~DeviceWatch() {
  stop();
  {
    Lock lock(mutex_);
    finished_ = true;
    wake_.notify_all();
  }
  aborting_.join();
}

std::shared_ptr<WatchedGroup> DeviceWatch::add_group(std::string name, int rank,
                                                     std::chrono::milliseconds timeout,
                                                     c10::intrusive_ptr<c10d::Backend> backend) {
  auto group = std::make_shared<WatchedGroup>();
  group->name = std::move(name);
  group->rank = rank;
  group->timeout = timeout;
  group->backend = std::move(backend);
  Lock lock(mutex_);
  groups_.push_back(group);
  return group;
}

void DeviceWatch::add(WatchedGroup& group, WatchedGroup::Operation operation) {
  c10::intrusive_ptr<c10d::Work> work = std::move(operation.work);
  begin(group, std::move(operation));
  queued(group, std::move(work));
}

void DeviceWatch::begin(WatchedGroup& group, WatchedGroup::Operation operation) {
  Lock lock(mutex_);
  come_back();
  group.last_queued = operation.sequence;
  // An operation behind others only waits for its turn, so its timeout begins when it is the first.
  if (group.running.empty()) group.front_since = Clock::now();
  group.running.push_back(std::move(operation));
}

void DeviceWatch::queued(WatchedGroup& group, c10::intrusive_ptr<c10d::Work> work) {
  Lock lock(mutex_);
  come_back();
  group.running.back().work = std::move(work);
}

void DeviceWatch::withdraw(WatchedGroup& group) {
  Lock lock(mutex_);
  come_back();
  group.running.pop_back();
}

std::optional<Error> DeviceWatch::failure() const {
  Lock lock(mutex_);
  come_back();
  return failure_;
}

void DeviceWatch::come_back() const {
  // A call after the failure shows that the compute thread does not hang in the driver: it will
  // throw the error, and the clock need not end the process.
  if (!failure_ || came_back_) return;
  came_back_ = true;
  wake_.notify_all();
}

void DeviceWatch::ask() {
  // The device is set before the lock is taken, because a call of the driver can wait for the
  // device.
  std::optional<std::string> unusable;
  try {
    backends_.use_device_in_thread();
  } catch (const std::exception& e) {
    unusable = first_line(e);
  }

  Lock lock(mutex_);
  if (unusable)
    failure_ = Error(ErrorCode::kCollective,
                     "the watch over collectives cannot use the device: " + *unusable);
  const auto is_over = [this] { return stop_ || failure_; };
  while (!wake_.wait_for(lock, options_.interval, is_over)) {
    // The list is copied, because ask_group() gives up the lock and a group may be added meanwhile.
    const auto groups = groups_;
    for (const auto& group : groups)
      ask_group(*group, lock);
  }
  // stop() and end() wait for this, within a limit, where a join could hang.
  asked_last_ = true;
  wake_.notify_all();
}

void DeviceWatch::ask_group(WatchedGroup& group, Lock& lock) {
  bool completed = true;
  while (completed && !stop_ && !failure_ && !group.running.empty() && group.running.front().work) {
    // Only the first operation is asked, since one behind others waits for its turn. The lock is
    // given up for the question, which can wait for the device; only this thread takes the
    // operation out of `running`.
    auto work = group.running.front().work;
    asking_since_ = Clock::now();
    lock.unlock();
    const Answer answer = ask_work(*work);
    lock.lock();

    // A completed operation makes room for the next one, whose timeout begins now. Otherwise the
    // first failure of any group is kept, in the words of the work if it has some.
    WatchedGroup::Operation done;
    completed = answer.completed && !answer.failure;
    if (completed) {
      done = std::move(group.running.front());
      group.running.pop_front();
      group.last_completed = done.sequence;
      group.front_since = Clock::now();
    } else if (!failure_ && answer.failure) {
      failure_ =
          describe(says_timeout(*answer.failure) ? ErrorCode::kTimeout : ErrorCode::kCollective,
                   group, *answer.failure);
    } else if (!failure_ && Clock::now() - group.front_since > group.timeout) {
      failure_ = describe(ErrorCode::kTimeout, group,
                          "it has not completed within " + in_ms(group.timeout));
    }

    // The destructor of a work frees events and memory of the device, which can wait for it too.
    lock.unlock();
    done = {};
    work.reset();
    lock.lock();
    asking_since_.reset();
  }
  if (failure_) wake_.notify_all();
}

// Judges the operations that the asking thread should have judged, had it come back.
void DeviceWatch::judge_time() {
  const auto now = Clock::now();

  // If several groups are late, the error names the one that is late by most.
  const WatchedGroup* worst = nullptr;
  Clock::duration worst_excess = grace(options_);
  for (const auto& group : groups_) {
    if (group->running.empty()) continue;
    const Clock::duration excess = now - group->front_since - group->timeout;
    if (excess <= worst_excess) continue;
    worst = group.get();
    worst_excess = excess;
  }
  if (worst == nullptr) return;

  std::string what = "it has not completed within " + in_ms(worst->timeout);
  if (!worst->running.front().work)
    what = "the call that queues it has not returned within " + in_ms(worst->timeout);
  if (asking_since_) what += ", and the device did not answer for " + in_ms(now - *asking_since_);
  failure_ = describe(ErrorCode::kTimeout, *worst, what);
}

void DeviceWatch::keep_time() {
  Lock lock(mutex_);
  const auto is_over = [this] { return stop_ || failure_; };
  while (!wake_.wait_for(lock, options_.interval, is_over))
    judge_time();
  if (!failure_) return;

  wake_.notify_all();
  // The log is written without the lock, which the compute thread needs to see the failure.
  const std::string text = failure_->what();
  lock.unlock();
  RETORT_LOG(kError) << text;
  lock.lock();
  if (!request_abort(lock)) return;

  // A compute thread that comes back throws the error, which reaches whoever started this process.
  // One that does not hangs in a call of the driver that no abort frees.
  if (!wake_.wait_for(lock, options_.exit_limit, [this] { return came_back_ || stop_; }))
    end_process(lock, "the thread that computes has not come back within " +
                          in_ms(options_.exit_limit) + " after the groups were aborted");
}

bool DeviceWatch::request_abort(Lock& lock) {
  // The abort runs on a thread of its own, because it can hang too; this one waits no longer than
  // exit_limit.
  abort_requested_ = true;
  wake_.notify_all();
  if (wake_.wait_for(lock, options_.exit_limit, [this] { return aborted_; })) return true;
  end_process(lock, "aborting the groups on the device has not come back within " +
                        in_ms(options_.exit_limit));
  return false;
}

void DeviceWatch::end_process(Lock& lock, const std::string& why) {
  const std::string group = groups_.empty() ? "none" : groups_.front()->name;
  const int rank = groups_.empty() ? 0 : groups_.front()->rank;
  const std::string first = failure_ ? "; what failed first: " + std::string(failure_->what()) : "";
  lock.unlock();
  RETORT_LOG(kError) << why << ", so this process ends: group=" << group << " rank=" << rank
                     << first;
  options_.exit_process();
  lock.lock();  // reached only where a test has replaced exit_process
}

void DeviceWatch::abort_when_told() {
  // The device is set before anything hangs: afterwards that call could wait for the device itself.
  try {
    backends_.use_device_in_thread();
  } catch (const std::exception& e) {
    RETORT_LOG(kError) << "the thread for aborts cannot use the device: " << first_line(e);
  }

  Lock lock(mutex_);
  wake_.wait(lock, [this] { return abort_requested_ || finished_; });
  if (!abort_requested_) return;

  // The list is copied and the lock given up, because the abort can wait for the device while the
  // clock keeps the time.
  std::vector<c10::intrusive_ptr<c10d::Backend>> groups;
  for (const auto& group : groups_)
    groups.push_back(group->backend);

  lock.unlock();
  try {
    backends_.abort(groups);
  } catch (const std::exception& e) {
    RETORT_LOG(kError) << "aborting the groups on the device failed: " << first_line(e);
  }
  groups.clear();
  lock.lock();
  aborted_ = true;
  wake_.notify_all();
}

void DeviceWatch::stop() {
  {
    Lock lock(mutex_);
    stop_ = true;
    wake_.notify_all();
    // The asking thread may hang in the driver, where a join would wait for ever.
    if (!wake_.wait_for(lock, options_.exit_limit, [this] { return asked_last_; }))
      end_process(lock, "the device did not answer for " + in_ms(options_.exit_limit) +
                            " at the end of the world");
  }
  if (asking_.joinable()) asking_.join();
  if (clock_.joinable()) clock_.join();
}

// Ends the groups in order, or by an abort where that does not come to its end in time.
void DeviceWatch::shut_down(Lock& lock) {
  // The thread that ends the groups reports through a state of its own, so that nobody holds the
  // lock of the watch while it waits.
  struct State {
    std::mutex mutex;
    std::condition_variable wake;
    bool done = false;
  };
  const auto state = std::make_shared<State>();
  std::chrono::milliseconds limit = options_.exit_limit;
  for (const auto& group : groups_)
    limit = std::max(limit, group->timeout);

  // The orderly end of a group waits for its other ranks, which may never come. So it runs on a
  // thread of its own, and this one waits with a limit.
  std::thread ending([state, groups = groups_, &backends = backends_] {
    try {
      backends.use_device_in_thread();
      for (const auto& group : groups)
        group->backend->shutdown();
    } catch (const std::exception& e) {  // a destructor can report it in the log only
      RETORT_LOG(kError) << "ending a group on the device: " << first_line(e);
    }
    std::lock_guard guard(state->mutex);
    state->done = true;
    state->wake.notify_all();
  });
  lock.unlock();
  const auto done_within = [&](std::chrono::milliseconds time) {
    Lock waiting(state->mutex);
    return state->wake.wait_for(waiting, time, [&] { return state->done; });
  };

  const bool done = done_within(limit);
  lock.lock();
  // An abort frees the thread that still waits for other ranks.
  if (!done) {
    lock.unlock();
    RETORT_LOG(kError) << "the other ranks have not ended their groups on the device within "
                       << in_ms(limit) << ": these are aborted";
    lock.lock();
    request_abort(lock);
    lock.unlock();
    const bool ended = done_within(options_.exit_limit);
    lock.lock();
    if (!ended)
      end_process(lock, "ending the groups on the device has not come back within " +
                            in_ms(options_.exit_limit) + " after they were aborted");
  }
  lock.unlock();
  ending.join();
  lock.lock();
}

void DeviceWatch::end(bool failed) {
  Lock lock(mutex_);
  if (std::exchange(ended_, true)) return;
  stop_ = true;
  wake_.notify_all();

  // What hangs on the device holds up the asking thread too, until it is aborted.
  const bool answered =
      !failed && wake_.wait_for(lock, options_.exit_limit, [this] { return asked_last_; });
  if (!answered && !failure_) request_abort(lock);
  lock.unlock();
  stop();

  // After a failure the clock has had the groups aborted, unless it had stopped before a work that
  // was asked last said that it failed.
  lock.lock();
  if (failure_ && !abort_requested_) {
    const std::string text = failure_->what();
    RETORT_LOG(kError) << text;
    request_abort(lock);
  }
  if (answered && !failure_) shut_down(lock);
}

}  // namespace retort::parallel::detail

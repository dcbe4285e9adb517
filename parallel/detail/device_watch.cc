#include "parallel/detail/device_watch.h"

#include <utility>

#include "base/log.h"
#include "parallel/detail/c10d_impl.h"

namespace retort::parallel::detail {
namespace {

using Clock = std::chrono::steady_clock;

Error describe(ErrorCode code, const WatchedGroup& group, const WatchedGroup::Operation& operation,
               const std::string& what) {
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

// Why the work failed, in its own words, or nothing while it has not.
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

void abort_groups(const std::vector<std::shared_ptr<WatchedGroup>>& groups) {
  for (const auto& group : groups) {
    try {
      group->backend->abort();
    } catch (const std::exception& e) {
      RETORT_LOG(kError) << "aborting group " << group->name << " failed: " << first_line(e);
    }
  }
}

}  // namespace

DeviceWatch::DeviceWatch(std::chrono::milliseconds interval)
    : interval_(interval), thread_([this] { run(); }) {}

DeviceWatch::~DeviceWatch() { stop(); }

void DeviceWatch::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<WatchedGroup> DeviceWatch::add_group(std::string name, int rank,
                                                     std::chrono::milliseconds timeout,
                                                     c10::intrusive_ptr<c10d::Backend> backend) {
  auto group = std::make_shared<WatchedGroup>();
  group->name = std::move(name);
  group->rank = rank;
  group->timeout = timeout;
  group->backend = std::move(backend);
  std::lock_guard lock(mutex_);
  groups_.push_back(group);
  return group;
}

void DeviceWatch::add(WatchedGroup& group, WatchedGroup::Operation operation) {
  std::lock_guard lock(mutex_);
  group.last_queued = operation.sequence;
  if (group.running.empty()) group.front_since = Clock::now();
  group.running.push_back(std::move(operation));
}

std::optional<Error> DeviceWatch::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

void DeviceWatch::drop_completed(WatchedGroup& group) {
  while (!group.running.empty() && group.running.front().work->isCompleted() &&
         !group.running.front().work->exception()) {
    group.last_completed = group.running.front().sequence;
    group.running.pop_front();
    group.front_since = Clock::now();
  }
}

std::optional<Error> DeviceWatch::poll() {
  for (const auto& group : groups_) {
    drop_completed(*group);
    if (group->running.empty()) continue;
    const WatchedGroup::Operation& first = group->running.front();
    if (const auto why = exception_of(*first.work))
      return describe(says_timeout(*why) ? ErrorCode::kTimeout : ErrorCode::kCollective, *group,
                      first, *why);
    // An operation behind others waits for its turn, so the first alone is judged, from when it
    // came to the front.
    if (Clock::now() - group->front_since > group->timeout)
      return describe(
          ErrorCode::kTimeout, *group, first,
          "it has not completed within " + std::to_string(group->timeout.count()) + " ms");
  }
  return std::nullopt;
}

void DeviceWatch::run() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, interval_, [this] { return stop_; })) {
    if (failure_) continue;

    // poll() throws when the device itself has failed: its events can no longer be asked.
    try {
      failure_ = poll();
    } catch (const std::exception& e) {
      failure_ =
          Error(ErrorCode::kCollective,
                "the device cannot be asked for the state of a collective: " + first_line(e));
    }
    if (!failure_) continue;

    // Without the lock: an abort can take long, and callers ask for failure() meanwhile.
    RETORT_LOG(kError) << failure_->what();
    const auto groups = groups_;
    lock.unlock();
    abort_groups(groups);
    lock.lock();
  }
}

}  // namespace retort::parallel::detail

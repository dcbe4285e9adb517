#include "launch/supervision/launcher_link.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <utility>

#include "base/log.h"
#include "base/process_name.h"

namespace retort::launch {
namespace {

constexpr std::chrono::milliseconds kAskAgain{100};
constexpr std::chrono::milliseconds kLookForAnother{500};
// Added to the time that a request to stop gave, because a launcher on this host acts at the end of
// that time and comes first.
constexpr std::chrono::milliseconds kBeyondStop{10'000};

// Ends this process and what it started: nobody else is left to do so. The launcher gives each of
// its processes a group of its own; any other group is not ours to kill.
[[noreturn]] void kill_own_group() {
  RETORT_LOG(kError) << "not stopped in time: killed, with all that this process started";
  if (::getpgrp() == ::getpid()) ::kill(0, SIGKILL);
  ::_exit(1);
}

}  // namespace

LauncherLink::LauncherLink(Options options) : options_(std::move(options)), grace_(options_.grace) {
  const ChildContext& context = options_.context;
  dial({.host = context.store_host, .port = context.store_port});
  thread_ = std::thread([this] { watch(); });
}

// Connects to a launcher, and drops the client of the one before. `client` is declared before the
// lock so that the old client is destroyed without it: that one's threads take the lock.
void LauncherLink::dial(const LauncherAddress& launcher) {
  const ChildContext& context = options_.context;
  std::function<void(Duration)> on_stop;
  if (options_.on_stop) {
    on_stop = [this](Duration within) {
      RETORT_LOG(kInfo) << "the launcher asks to stop within " << format_duration(within);
      options_.on_stop();
      std::lock_guard lock(mutex_);
      stop_by_ = Deadline::after(within + kBeyondStop);
      changed_.notify_all();
    };
  }

  // The callbacks run on the client's threads: they note what has happened and wake the thread that
  // acts on it.
  auto client = std::make_shared<rpc::SupervisionClient>(rpc::SupervisionClient::Options{
      .access = {.name = process_name(context.role, context.rank),
                 .run = context.run,
                 .secret = context.secret,
                 .encryption = context.encryption},
      .host = launcher.host,
      .port = launcher.port,
      .restart = context.life,
      .times = {.interval = context.heartbeat_interval, .limit = context.peer_timeout},
      .on_lost =
          [this](const std::string& why) {
            std::lock_guard lock(mutex_);
            lost_ = why;
            changed_.notify_all();
          },
      .on_stop = on_stop});
  std::lock_guard lock(mutex_);
  at_ = launcher;
  client_.swap(client);
}

LauncherLink::~LauncherLink() {
  // The launcher judges the run by the last report, which may still be on its way.
  if (!client()->flush(Deadline::after(options_.context.peer_timeout))) {
    RETORT_LOG(kWarning) << "what this process said last has not reached the launcher";
  }
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  // The thread ends first, because it may be dialing another launcher, which replaces client_.
  thread_.join();
  client_.reset();
}

std::shared_ptr<rpc::SupervisionClient> LauncherLink::client() {
  std::lock_guard lock(mutex_);
  return client_;
}

void LauncherLink::report(const ProcessStatus& status) {
  {
    std::lock_guard lock(mutex_);
    // The report is kept: another launcher has heard none of the earlier ones and is told this one.
    reported_ = status;
  }
  client()->report(encode_status(status));
}

LauncherAddress LauncherLink::where() {
  std::lock_guard lock(mutex_);
  return at_;
}

bool LauncherLink::is_another() {
  std::lock_guard lock(mutex_);
  return is_another_;
}

bool LauncherLink::lost() {
  std::lock_guard lock(mutex_);
  return !lost_.empty();
}

void LauncherLink::set_grace(Duration grace) {
  std::lock_guard lock(mutex_);
  grace_ = grace;
}

// Runs on a thread of its own. It waits for the loss of the launcher, then for another launcher
// where the run goes on without one, then until nobody needs this process. After that the process
// is asked to end, and killed with its group when the grace is over.
void LauncherLink::watch() {
  std::unique_lock lock(mutex_);
  bool replaced = false;  // then its successor is needed, not this process
  do {
    if (!wait_for_loss(lock)) return;
    RETORT_LOG(kError) << "the launcher is gone: " << lost_;
    replaced = lost_ == rpc::kReplaced;
  } while (!replaced && options_.next && !stop_by_ && wait_for_another(lock));
  if (ended_ || (!replaced && options_.is_needed && !wait_until_unneeded(lock))) return;

  const Deadline end = Deadline::after(grace_);
  RETORT_LOG(kError) << "stopping, because the launcher is gone; at the latest in "
                     << format_duration(grace_);

  // on_lost is somebody else's code and runs without the lock.
  lock.unlock();
  options_.on_lost();
  lock.lock();
  if (!changed_.wait_until(lock, end.time(), [this] { return ended_; })) kill_own_group();
}

bool LauncherLink::wait_for_loss(std::unique_lock<std::mutex>& lock) {
  while (!ended_ && lost_.empty()) {
    if (!stop_by_) {
      changed_.wait(lock);
      continue;
    }
    // The launcher kills what does not stop in time on its own host alone; on another host nobody
    // but this thread can.
    changed_.wait_until(lock, stop_by_->time());
    if (!ended_ && lost_.empty() && stop_by_->expired()) kill_own_group();
  }
  return !ended_;
}

bool LauncherLink::wait_for_another(std::unique_lock<std::mutex>& lock) {
  RETORT_LOG(kWarning) << "going on without one, until there is another (retort launch --attach)";
  while (!ended_ && options_.next->is_training()) {
    const auto next = options_.next->find();
    // The address that is found may still be that of the launcher that was lost.
    if (!next || *next == at_) {
      changed_.wait_for(lock, kLookForAnother, [this] { return ended_; });
      continue;
    }

    RETORT_LOG(kWarning) << "another launcher is at " << next->host << ":" << next->port;
    // The loss is cleared before the new client exists: cleared after, it could be the loss of the
    // new connection.
    lost_.clear();
    is_another_ = true;
    const std::optional<ProcessStatus> reported = reported_;
    // dial() and client() take the lock themselves.
    lock.unlock();
    dial(*next);
    if (reported) client()->report(encode_status(*reported));
    lock.lock();
    return true;
  }
  return false;
}

bool LauncherLink::wait_until_unneeded(std::unique_lock<std::mutex>& lock) {
  if (!options_.is_needed()) return true;
  RETORT_LOG(kError) << "serving until the driving processes have saved, at most "
                     << format_duration(options_.need_limit);
  const Deadline limit = Deadline::after(options_.need_limit);
  while (!limit.expired() && options_.is_needed()) {
    const Deadline again = Deadline::after(std::min(limit.remaining(), kAskAgain));
    if (changed_.wait_until(lock, again.time(), [this] { return ended_; })) return false;
  }
  return true;
}

}  // namespace retort::launch

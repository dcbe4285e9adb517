#include "launch/supervision/watched_processes.h"

#include <sys/wait.h>

#include <algorithm>

#include "base/error.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

// After a process has ended, what it said before may take this long to arrive. The end of its
// connection comes after that and ends the wait.
constexpr std::chrono::milliseconds kHearOut{1'000};
constexpr size_t kTailLines = 15;

}  // namespace

ProcessFailure Watched::failure() const {
  return {.role = spec->context.role,
          .rank = spec->context.rank,
          .pid = process ? process->pid() : 0,
          .lost = process ? process->lost() : "",
          .error = last.error,
          .message = last.state == "failed" ? last.message : "",
          .of_another_rank = last.of_another_rank,
          .log = log,
          .log_tail = log_tail(log, log_offset, kTailLines)};
}

void WatchedProcesses::start_all() {
  std::error_code failed;
  fs::create_directories(options_.log_folder, failed);
  if (failed)
    throw Error(ErrorCode::kUnavailable,
                "cannot create folder " + options_.log_folder.string() + ": " + failed.message());
  all_.resize(options_.processes.size());
  for (size_t i = 0; i < all_.size(); ++i) {
    all_[i].spec = &options_.processes[i];
    start(all_[i]);
  }
}

void WatchedProcesses::start(Watched& child) {
  // Only the first life was started by somebody else; the later ones are the backend's.
  if (child.restarts > 0) child.spec->joined.reset();
  const bool is_elsewhere = child.spec->joined && !child.spec->joined->is_replaceable;

  // Each life has a number: what is told of an earlier one is not taken for this one's.
  ChildContext context = child.spec->context;
  context.stop_timeout = options_.stop_timeout;
  context.restart = child.spec->context.restart + child.restarts;
  context.life = child.spec->context.life + child.restarts;
  child.answer_by.reset();
  child.last = {};
  child.served = child.connected = child.silent = false;
  child.life = context.life;

  // Its log may hold earlier lives: what it says in this one begins behind them.
  const auto& joined = child.spec->joined;
  child.log = options_.log_folder / (context.role + "-" + std::to_string(context.rank) + ".log");
  if (is_elsewhere) child.log = joined->log;
  if (child.log.empty()) child.log = "its own output on " + child.spec->host;
  std::error_code missing;
  const auto size = fs::file_size(child.log, missing);
  child.log_offset = missing ? 0 : static_cast<int64_t>(size);

  // It is expected before it starts, since it dials at once.
  options_.supervision->expect(child.spec->name(), child.life);
  child.joined = nullptr;
  child.process.reset();
  if (child.spec->joined)
    start_joined(child, context);
  else
    child.process = options_.backend->start({.context = context,
                                             .host = child.spec->host,
                                             .driving = child.spec->driving,
                                             .arguments = child.spec->arguments,
                                             .env = child.spec->env,
                                             .log = child.log});

  // Up to here the child counts as ended, so that an error of the start leaves it so.
  child.exit_status.reset();
  child.reaped.reset();
  observer_.on_start(*child.spec, child.process->pid());
}

void WatchedProcesses::start_joined(Watched& child, const ChildContext& context) {
  if (child.spec->joined->tell) child.spec->joined->tell(context);
  auto process = std::make_unique<JoinedProcess>(*child.spec->joined, child.spec->host);
  child.joined = process.get();
  child.process = std::move(process);
  // It knows by now where to dial, and its time to do so begins.
  child.connect_by = Deadline::after(options_.connect_timeout);
}

void WatchedProcesses::reap() {
  for (Watched& child : all_) {
    if (child.gone()) continue;
    child.reaped = child.process->try_reap();
    if (child.reaped) child.heard_out_by = Deadline::after(kHearOut);
  }
}

std::vector<std::pair<Watched*, int>> WatchedProcesses::ends() {
  std::vector<std::pair<Watched*, int>> ends;
  for (Watched& child : all_) {
    if (child.exit_status || !child.reaped) continue;
    // As long as its connection stands, its last words may be on their way.
    if (child.connected && !child.heard_out_by->expired()) continue;
    ends.emplace_back(&child, *child.reaped);
  }
  // Among those that ended within one poll a crash is more likely the cause than an exit code, and
  // what comes first is taken for the first failure.
  std::stable_partition(ends.begin(), ends.end(),
                        [](const auto& end) { return WIFSIGNALED(end.second); });
  return ends;
}

void WatchedProcesses::ask_to_stop(bool driving, bool serving, Duration within) {
  for (Watched& child : all_) {
    if (child.gone() || !(child.spec->driving ? driving : serving)) continue;
    child.asked_to_stop = true;
    options_.supervision->stop(child.spec->name(), within);
    // The request over the connection says how much time there is, which SIGTERM cannot;
    // signal_unanswered() sends that to a process that does not answer.
    if (child.connected)
      child.answer_by = Deadline::after(options_.answer_timeout);
    else
      child.process->signal(SIGTERM);
    child.process->signal(SIGCONT);  // a stopped process could not obey
  }
}

void WatchedProcesses::signal_unanswered() {
  for (Watched& child : all_) {
    if (child.gone() || !child.answer_by || !child.answer_by->expired()) continue;
    child.answer_by.reset();
    child.process->signal(SIGTERM);
    child.process->signal(SIGCONT);
  }
}

void WatchedProcesses::kill() {
  for (Watched& child : all_)
    if (!child.exit_status) child.process->signal_group(SIGKILL);
}

bool WatchedProcesses::any_running(bool driving) const {
  return std::any_of(all_.begin(), all_.end(), [&](const Watched& c) {
    return !c.exit_status && c.spec->driving == driving;
  });
}

bool WatchedProcesses::driver_said(std::string_view state) const {
  return std::any_of(all_.begin(), all_.end(),
                     [&](const Watched& c) { return c.spec->driving && c.last.state == state; });
}

bool WatchedProcesses::drivers_said_last(std::initializer_list<std::string_view> words) const {
  return std::all_of(all_.begin(), all_.end(), [&](const Watched& c) {
    return !c.spec->driving || std::find(words.begin(), words.end(), c.last.state) != words.end();
  });
}

bool WatchedProcesses::drivers_are_over() const {
  return drivers_said_last({"done", "stopped", "interrupted", "diverged"});
}

bool WatchedProcesses::driver_succeeded() const {
  return std::all_of(all_.begin(), all_.end(), [](const Watched& c) {
    return !c.spec->driving ||
           (c.exit_status && WIFEXITED(*c.exit_status) && WEXITSTATUS(*c.exit_status) == 0);
  });
}

}  // namespace retort::launch

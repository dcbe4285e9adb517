#include "launch/ssh/hosted_processes.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <utility>

#include "base/error.h"
#include "base/process/pipe.h"
#include "launch/backends/local_backend.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

constexpr size_t kChunk = 32 << 10;
// What a process leaves in its pipe when it ends is no more than that.
constexpr int kMostChunksAtEnd = 64;

}  // namespace

HostedProcesses::HostedProcesses(Tell tell, int hold_fd)
    : tell_(std::move(tell)), hold_fd_(hold_fd) {}

HostedProcesses::~HostedProcesses() = default;

void HostedProcesses::start(const ToHost& frame) {
  try {
    const ProcessStart start{.context = decode_context(frame.context),
                             .host = {},
                             .driving = frame.driving,
                             .arguments = frame.arguments,
                             .env = frame.env,
                             .log = frame.log};
    Pipe output = make_pipe();
    // The thread that reads the output also gives life signs, so it must not wait for a process.
    ::fcntl(output.out.get(), F_SETFL, O_NONBLOCK);
    const OwnedFd told = context_input(start.context);
    SpawnOptions options =
        spawn_options(start, fs::read_symlink("/proc/self/exe"), told.get(), hold_fd_);
    options.output_fd = output.in.get();
    options.log = "/dev/null";  // what it writes goes through the pipe

    processes_.push_back({.id = frame.id,
                          .log = start.log,
                          .driving = frame.driving,
                          .output = std::move(output.out),
                          .child = ChildProcess(options)});
    stop_timeout_ = std::max(stop_timeout_, start.context.stop_timeout);
    outlive_launcher_ |= start.context.outlives_launcher;
    tell_(
        {.kind = FromHostKind::kStarted, .id = frame.id, .number = processes_.back().child.pid()});
  } catch (const Error& error) {
    tell_({.kind = FromHostKind::kRefused, .id = frame.id, .text = error.message()});
  }
}

void HostedProcesses::signal(const ToHost& frame) {
  for (const Process& process : processes_) {
    if (process.id != frame.id) continue;
    const int number = static_cast<int>(frame.number);
    frame.group ? process.child.signal_group(number) : process.child.signal(number);
  }
}

void HostedProcesses::work(bool full) {
  logs_.work();
  full = full || logs_.full();
  for (auto process = processes_.begin(); process != processes_.end();) {
    const std::optional<int> status = process->child.try_reap();
    // The last output is taken even where there is no room, because the end is told after it and
    // the pipe goes with the process.
    if (status || !full) take_output(*process, status.has_value());
    if (status) {
      tell_({.kind = FromHostKind::kEnded, .id = process->id, .number = *status});
      process = processes_.erase(process);
      continue;
    }
    const bool held = process->child.stopped();
    if (held != process->held)
      tell_({.kind = FromHostKind::kHeld, .id = process->id, .number = held ? 1 : 0});
    process->held = held;
    ++process;
  }
}

void HostedProcesses::take_output(Process& process, bool all) {
  std::array<char, kChunk> bytes;
  for (int i = 0; process.output.get() >= 0 && i < (all ? kMostChunksAtEnd : 1); ++i) {
    const ssize_t got = ::read(process.output.get(), bytes.data(), bytes.size());
    if (got > 0) put(process, {bytes.data(), static_cast<size_t>(got)});
    if (got == 0) process.output.reset();
    if (got <= 0) return;
  }
}

void HostedProcesses::put(const Process& process, std::string_view text) {
  if (told_)
    return tell_({.kind = FromHostKind::kOutput, .id = process.id, .text = std::string(text)});
  logs_.append(process.log, text);
}

void HostedProcesses::poll_for(std::vector<pollfd>& entries, bool full) const {
  full = full || logs_.full();
  for (const Process& process : processes_) {
    entries.push_back({process.child.pidfd(), POLLIN, 0});
    if (!full && process.output.get() >= 0) entries.push_back({process.output.get(), POLLIN, 0});
  }
}

void HostedProcesses::keep_output() { told_ = false; }

void HostedProcesses::terminate(bool driving) {
  for (Process& process : processes_) {
    if (process.driving != driving || std::exchange(process.terminated, true)) continue;
    process.child.signal(SIGTERM);
    process.child.signal(SIGCONT);  // a stopped process could not obey
  }
}

void HostedProcesses::kill() {
  for (const Process& process : processes_)
    process.child.signal_group(SIGKILL);
}

bool HostedProcesses::any_driving() const {
  return std::ranges::any_of(processes_, &Process::driving);
}

bool HostedProcesses::is_child(pid_t pid) const {
  return std::ranges::any_of(processes_,
                             [&](const Process& one) { return one.child.pid() == pid; });
}

}  // namespace retort::launch

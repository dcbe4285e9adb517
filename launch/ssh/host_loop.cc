#include "launch/ssh/host_loop.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/process/owned_fd.h"
#include "launch/process/child_process.h"
#include "launch/process/orphans.h"
#include "launch/process/signal_catcher.h"
#include "launch/run_folder/driving_lock.h"
#include "launch/run_folder/run_mark.h"
#include "launch/ssh/frame_stream.h"
#include "launch/ssh/heartbeat_clock.h"
#include "launch/ssh/host_frames.h"
#include "launch/ssh/host_version.h"
#include "launch/ssh/hosted_processes.h"

namespace retort::launch {
namespace {

constexpr std::chrono::milliseconds kHostTick{100};
constexpr std::chrono::milliseconds kHostReap{10'000};
// A launcher that has not said where the run is within this time is none.
constexpr std::chrono::milliseconds kFirstWord{60'000};
// Added to the time that the processes have to end. Those that still have a launcher get as much.
constexpr std::chrono::milliseconds kBeyondTheirStop{10'000};
// With more unsent bytes than that, output stays in the pipes, so that the processes wait for a
// slow connection and this one's memory does not grow.
constexpr size_t kFull = 1 << 20;

// Moves the connection away from descriptors 0 and 1: whatever else is printed goes to stderr and
// damages no frame.
FrameStream take_standard_streams() {
  OwnedFd in(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 10));
  OwnedFd out(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 10));
  const OwnedFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ::dup2(nothing.get(), STDIN_FILENO);
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  return {std::move(in), std::move(out)};
}

class HostLoop {
 public:
  HostLoop(SignalCatcher& signals, ExamineHost examine)
      : signals_(signals), examine_(std::move(examine)) {
    stream_.send_line(version_line());
  }

  int run() {
    while (!ended_ && !(lost_ && (!processes_ || processes_->empty()))) {
      wait();
      if (!lost_) listen();
      if (signals_.next()) end_by_signal();
      if (processes_) processes_->work(full());
      // The thread of an examination sends nothing itself, because the stream is this one's.
      if (answer_.valid() && answer_.wait_for(std::chrono::seconds(0)) == std::future_status::ready)
        tell({.kind = FromHostKind::kExamined, .text = answer_.get()});
      orphans_.reap();
      if (lost_ && !goes_on_) end_processes();
    }

    // Whatever ended the loop, no process of the run may stay on this host.
    if (processes_) kill_processes();
    for (const pid_t pid : orphans_.end_all(Deadline::after(kHostReap))) {
      RETORT_LOG(kError) << "process " << pid << " could not be ended";
    }
    const int code = lost_ ? 1 : 0;
    // An examination may still wait for an answer that nobody wants any more, and the destructor of
    // its future would wait, too. Its thread ends with the process, whose destructors have nothing
    // else to do than the system does.
    if (answer_.valid()) std::quick_exit(code);
    return code;
  }

 private:
  bool full() const { return !lost_ && stream_.unsent() > kFull; }

  void wait() const {
    std::vector<pollfd> entries{{signals_.fd(), POLLIN, 0}};
    if (!lost_) entries.push_back({stream_.in(), POLLIN, 0});
    if (!lost_ && stream_.unsent() > 0) entries.push_back({stream_.out(), POLLOUT, 0});
    if (processes_) processes_->poll_for(entries, full());
    if (::poll(entries.data(), entries.size(), static_cast<int>(kHostTick.count())) < 0 &&
        errno != EINTR)
      throw Error(ErrorCode::kUnavailable, std::string("poll: ") + std::strerror(errno));
  }

  // Takes what the launcher says, and notes whether it lives.
  void listen() {
    signs_.look();
    const bool open = stream_.fill();
    while (const auto frame = stream_.next()) {
      signs_.heard();
      take(read_to_host(*frame));
      if (ended_) return;
    }
    if (signs_.due() && processes_) tell({});
    if (!open || !stream_.flush()) return lose("the launcher's connection has ended");
    if (signs_.silent()) lose("the launcher is silent");
  }

  void take(const ToHost& frame) {
    const bool of_process = frame.kind == ToHostKind::kStart || frame.kind == ToHostKind::kSignal;
    if (!processes_ && of_process)
      throw Error(ErrorCode::kCorrupt, "the launcher has not said where the run is");
    switch (frame.kind) {
      case ToHostKind::kPlace: take_place(frame); break;
      case ToHostKind::kStart: processes_->start(frame); break;
      case ToHostKind::kSignal: processes_->signal(frame); break;
      case ToHostKind::kEnd: ended_ = true; break;
      case ToHostKind::kBeat: break;
      case ToHostKind::kExamine: examine(frame.question); break;
    }
  }

  // An examination may wait for engines that do not answer. It runs on a thread of its own, so that
  // this one gives life signs meanwhile.
  void examine(const std::string& question) {
    if (answer_.valid())
      throw Error(ErrorCode::kCorrupt, "the launcher asks again before it has an answer");
    answer_ = std::async(std::launch::async, examine_, question);
  }

  // Shows the launcher that this host sees its folders: it goes into the working folder and reads
  // the mark in the run's.
  void take_place(const ToHost& frame) {
    signs_ = HeartbeatClock(Duration(frame.interval_ms), Duration(frame.limit_ms));
    try {
      // Relative paths of the recipe must mean the same here as at the launcher.
      if (::chdir(frame.folder.c_str()) != 0)
        throw Error(ErrorCode::kUnavailable, frame.folder + ": " + std::strerror(errno));
      run_folder_ = frame.run_folder;
      mark_ = read_run_mark(run_folder_);
      const char* connection = std::getenv("SSH_CONNECTION");
      processes_.emplace([this](const FromHost& one) { tell(one); }, mark_.hold.get());
      tell({.kind = FromHostKind::kHere,
            .text = mark_.text,
            .connection = connection ? connection : "",
            .number = threads_per_process(0, 1)});
    } catch (const Error& error) {
      tell({.kind = FromHostKind::kRefused, .text = error.message()});
    }
  }

  void tell(const FromHost& frame) {
    if (!lost_) stream_.send(rpc::to_bytes(frame));
  }

  void lose(const std::string& why) {
    if (lost_) return;
    RETORT_LOG(kError) << why;
    stream_.flush();
    lost_ = true;
    if (!processes_) return;
    // Nobody takes the output of the processes any more; it goes to their logs from here.
    processes_->keep_output();
    // Processes that go on without their launcher end by themselves, or by another one's request.
    goes_on_ = processes_->outlive_launcher();
    kill_at_ = Deadline::after(processes_->stop_timeout() + kBeyondTheirStop);
  }

  void end_by_signal() {
    lose("a signal asks this host's part of the run to end");
    // A signal to this program also ends processes that would go on without their launcher.
    if (!std::exchange(goes_on_, false)) return;
    kill_at_ = Deadline::after(processes_->stop_timeout() + kBeyondTheirStop);
  }

  // Serving processes are needed by driving ones, on whatever host these are, until these have
  // saved.
  void end_processes() {
    if (!processes_) return;
    processes_->terminate(/*driving=*/true);
    if (!processes_->any_driving() && !anyone_drives(run_folder_))
      processes_->terminate(/*driving=*/false);
    if (kill_at_->expired()) processes_->kill();
  }

  void kill_processes() {
    const Deadline deadline = Deadline::after(kHostReap);
    while (!processes_->empty() && !deadline.expired()) {
      processes_->kill();
      processes_->work(/*full=*/false);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  SignalCatcher& signals_;
  const ExamineHost examine_;
  FrameStream stream_ = take_standard_streams();
  HeartbeatClock signs_{kFirstWord, kFirstWord};
  std::filesystem::path run_folder_;
  RunMark mark_;
  std::optional<HostedProcesses> processes_;
  std::future<std::string> answer_;  // to the doctor of the launcher's host
  Orphans orphans_{[this](pid_t pid) { return processes_ && processes_->is_child(pid); }};
  bool ended_ = false;  // the launcher says so
  bool lost_ = false;
  bool goes_on_ = false;  // without the launcher
  std::optional<Deadline> kill_at_;
};

}  // namespace

int serve_as_host(ExamineHost examine) {
  set_log_identity("host");
  SignalCatcher& signals = *new SignalCatcher({SIGTERM, SIGINT, SIGHUP});
  return HostLoop(signals, std::move(examine)).run();
}

}  // namespace retort::launch

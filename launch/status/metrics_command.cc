#include "launch/status/metrics_command.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <utility>

#include "base/error.h"
#include "base/process/child.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

constexpr int kTailMilliseconds = 100;   // between looks for new lines
constexpr size_t kPieceBytes = 1 << 16;  // of the file, at once
constexpr size_t kOutputBytes = 1 << 14;
constexpr int kPipePieces = (1 << 20) / kOutputBytes;  // no pipe holds more
// How long the exit code of a program that has closed its stdin is waited for.
constexpr Duration kLastWords{3'000};

int64_t steady_milliseconds() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// The folder of logs is made by whoever is first.
fs::path in_folder(const fs::path& file) {
  std::error_code failed;
  fs::create_directories(file.parent_path(), failed);
  return file;
}

int64_t size_of_file(const fs::path& path) {
  std::error_code missing;
  const auto size = fs::file_size(path, missing);
  return missing ? 0 : static_cast<int64_t>(size);
}

}  // namespace

// What the thread works with.
struct MetricsCommand::Work {
  explicit Work(const Options& options)
      : child(options.argv),
        metrics(options.metrics),
        offset(size_of_file(options.metrics)),
        output(in_folder(options.output), std::ios::app) {}

  // Whole lines that the file has beyond `offset`; "" if there are none.
  std::string next_lines() {
    if (size_of_file(metrics) <= offset) return "";
    std::ifstream file(metrics, std::ios::binary);
    file.seekg(offset);
    std::string piece(kPieceBytes, '\0');
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    piece.resize(static_cast<size_t>(file.gcount()));
    // A line that is longer than a piece goes on in the next one.
    const size_t end = piece.rfind('\n');
    if (end == std::string::npos && piece.size() < kPieceBytes) return "";
    if (end != std::string::npos) piece.resize(end + 1);
    offset += static_cast<int64_t>(piece.size());
    return piece;
  }

  // Waits until the program prints or reads, a little while at most.
  void wait_for_program() {
    const bool sends = !unsent.empty();
    pollfd fds[] = {{out_open ? child.out() : -1, POLLIN, 0},
                    {err_open ? child.err() : -1, POLLIN, 0},
                    {sends ? child.in() : -1, POLLOUT, 0}};
    ::poll(fds, 3, kTailMilliseconds);
    if (fds[0].revents != 0) out_open = keep_output(child.out());
    if (fds[1].revents != 0) err_open = keep_output(child.err());
  }

  // False once the stream has ended.
  bool keep_output(int fd) {
    char buffer[kOutputBytes];
    const ssize_t got = ::read(fd, buffer, sizeof buffer);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    output.write(buffer, got).flush();
    return got > 0;
  }

  // False if the program has closed its stdin.
  bool send() {
    if (unsent.empty()) return true;
    const ssize_t wrote = write_quietly(child.in(), unsent.data(), unsent.size());
    if (wrote < 0) return errno == EAGAIN || errno == EINTR;
    unsent.erase(0, static_cast<size_t>(wrote));
    return true;
  }

  Child child;
  fs::path metrics;
  int64_t offset = 0;
  std::ofstream output;
  std::string unsent;
  bool out_open = true, err_open = true;
};

MetricsCommand::MetricsCommand(Options options) : options_(std::move(options)) {
  try {
    work_ = std::make_unique<Work>(options_);
  } catch (const Error& error) {
    throw Error(error.code(), "launch.metrics_command: " + error.message());
  }
  pid_ = work_->child.pid();
  guard_pid_ = work_->child.guard_pid();
  thread_ = std::thread([this] { follow(*work_); });
}

MetricsCommand::~MetricsCommand() {
  if (thread_.joinable()) finish(Duration(0));
}

// The thread: passes lines on until the program has ended, or the run has and the program has had
// its time.
void MetricsCommand::follow(Work& work) {
  for (bool closed = false;;) {
    const bool run_ended = run_ended_;  // before the file is looked at for the last time
    if (work.unsent.empty() && !closed) work.unsent = work.next_lines();
    // The last lines are out, and the end of its stdin tells the program that no more come.
    if (work.unsent.empty() && run_ended && !closed) {
      work.child.close_in();
      closed = true;
    }
    work.wait_for_program();
    const bool reads = closed || work.send();

    // A program that has closed its stdin gets a moment to end, because its exit code says more
    // than that it no longer reads.
    std::string ending = work.child.ending(reads ? Duration(0) : kLastWords);
    guard_pid_ = work.child.guard_pid();
    if (!ending.empty()) {
      const bool well = closed && ending == "exited with code 0";
      return end(well ? "" : ending);
    }
    if (!reads) return end("closed its stdin, and was killed");
    if (run_ended && steady_milliseconds() >= end_by_)
      return end("did not end in time after the run, and was killed");
  }
}

void MetricsCommand::end(const std::string& how) {
  // What the program printed last may still be in the pipes. The loop is bounded, because what the
  // program left behind may print for ever.
  for (const int fd : {work_->child.out(), work_->child.err()})
    for (int pieces = 0; pieces < kPipePieces && work_->keep_output(fd); ++pieces) {
    }
  work_->child.kill();
  pid_ = -1;
  guard_pid_ = -1;
  if (how.empty()) return;
  const std::lock_guard lock(mutex_);
  message_ = "launch.metrics_command ('" + options_.argv.front() + "') " + how +
             (run_ended_ ? "" : "; the run goes on without it") + "; what it printed is in " +
             options_.output.string();
}

void MetricsCommand::on_tick() {
  std::string message;
  {
    const std::lock_guard lock(mutex_);
    message = std::exchange(message_, "");
  }
  if (!message.empty()) options_.tell(message);
}

void MetricsCommand::finish(Duration timeout) {
  end_by_ = steady_milliseconds() + timeout.count();
  run_ended_ = true;
  thread_.join();
  on_tick();
}

}  // namespace retort::launch

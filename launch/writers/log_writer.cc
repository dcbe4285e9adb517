#include "launch/writers/log_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/deadline.h"
#include "base/log.h"
#include "base/process/owned_fd.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

constexpr Duration kLastLogs{5'000};
constexpr size_t kLogPiece = 64 << 10;

}  // namespace

Duration LogPatience::left(Clock::time_point now) {
  left_ = std::min(kMost, left_ + std::chrono::duration_cast<Duration>((now - looked_) / 10));
  looked_ = now;
  return std::max(left_, Duration(0));
}

struct LogWriter::Files {
  std::map<fs::path, OwnedFd> open;
  bool warned = false;
  // When the file system last took something, or was given something new.
  std::atomic<std::chrono::steady_clock::time_point> answered{};

  void append(const fs::path& log, std::string_view text);
};

void LogWriter::Files::append(const fs::path& log, std::string_view text) {
  OwnedFd& file = open[log];
  if (file.get() < 0)
    file = OwnedFd(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  // A long text goes in pieces, so that full() sees that a slow file system takes some of it.
  while (file.get() >= 0 && !text.empty()) {
    const ssize_t wrote = ::write(file.get(), text.data(), std::min(text.size(), kLogPiece));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) break;
    text.remove_prefix(static_cast<size_t>(wrote));
    answered = std::chrono::steady_clock::now();
  }
  if (text.empty() || std::exchange(warned, true)) return;
  RETORT_LOG(kWarning) << "cannot write " << log.string() << ": " << std::strerror(errno);
}

LogWriter::LogWriter(size_t capacity) : capacity_(capacity), files_(std::make_shared<Files>()) {}

LogWriter::~LogWriter() { drain(kLastLogs); }

void LogWriter::append(const fs::path& log, std::string_view text) {
  // The thread may have become idle since the caller asked full(), which then says no.
  work();
  Waiting& waiting = waiting_[log];
  // After a gap nothing more is taken until the thread has it, so that the log says at the place of
  // the gap how much is missing.
  const bool fits = waiting.left_out == 0 && waiting_bytes_ + text.size() <= capacity_;
  if (fits) {
    waiting.text += text;
    waiting_bytes_ += text.size();
  } else {
    waiting.left_out += text.size();
  }
  work();
}

void LogWriter::work() {
  if (waiting_.empty() || !thread_.idle()) return;
  waiting_bytes_ = 0;
  // The file system is given something new, and has kSlow from now on to take some of it.
  files_->answered = std::chrono::steady_clock::now();
  thread_.start([files = files_, waiting = std::exchange(waiting_, {})] {
    for (const auto& [log, lines] : waiting) {
      files->append(log, lines.text);
      if (lines.left_out > 0)
        files->append(log, "\n[" + std::to_string(lines.left_out) +
                               " bytes were left out: the file system did not answer]\n");
    }
  });
}

bool LogWriter::full() const {
  // A file system that has taken nothing for long may hang, and the writers of the logs must not
  // hang with it.
  return waiting_bytes_ > capacity_ / 2 && !thread_.idle() &&
         std::chrono::steady_clock::now() - files_->answered.load() < kSlow;
}

void LogWriter::drain(LogPatience& patience) {
  const auto start = LogPatience::Clock::now();
  drain(patience.left(start));
  patience.spend(std::chrono::duration_cast<Duration>(LogPatience::Clock::now() - start));
}

void LogWriter::drain(Duration patience) {
  const Deadline deadline = Deadline::after(patience);
  while (thread_.wait_a_while(deadline.remaining()) && !waiting_.empty())
    work();
}

}  // namespace retort::launch

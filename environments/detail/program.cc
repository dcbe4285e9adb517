#include "environments/detail/program.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/printable.h"
#include "environments/detail/protocol.h"

namespace retort::environments::detail {
namespace {

constexpr size_t kStderrBytes = 2000;         // kept for errors
constexpr size_t kLogLineBytes = 2000;        // of one line of stderr
constexpr size_t kLogBytes = size_t{1} << 20;  // of stderr, in a minute
constexpr std::chrono::seconds kLogWindow{60};
// The exit code of a program that has closed its pipes is waited for this long.
constexpr Duration kDeathGrace = std::chrono::milliseconds(3'000);

std::string command_text(const std::vector<std::string>& argv) {
  std::string text;
  for (const std::string& argument : argv)
    text += (text.empty() ? "" : " ") + argument;
  return text;
}

// An error of the start names the environment, too.
std::unique_ptr<Child> start_child(const std::string& name, const std::vector<std::string>& argv) {
  try {
    return std::make_unique<Child>(argv);
  } catch (const Error& error) {
    throw Error(error.code(), name + ": " + error.message());
  }
}

}  // namespace

Program::Program(const std::string& name, const std::vector<std::string>& argv)
    : name_(name),
      shown_(name + ": command '" + command_text(argv) + "'"),
      child_(start_child(name, argv)) {}

void Program::add(std::string_view lines) {
  unsent_.erase(0, std::exchange(sent_, 0));
  unsent_ += lines;
}

std::vector<Program::Line> Program::exchange(int wake, Deadline until) {
  wait(wake, until);
  read_stderr();

  // Answers that it wrote before it closed a pipe count, so they are read before it is given up.
  std::vector<Line> lines;
  const bool has_read = read_stdout(lines);
  if (lines.empty() && (is_mute_ || (is_deaf_ && !has_read))) lost();
  send();
  return lines;
}

void Program::wait(int wake, Deadline until) {
  std::vector<pollfd> fds{{child_->out(), POLLIN, 0}, {wake, POLLIN, 0}};
  if (child_->err() >= 0) fds.push_back({child_->err(), POLLIN, 0});
  // Its stdin is polled even with nothing to send: POLLERR says that it does not read any more.
  const bool more = sent_ < unsent_.size();
  fds.push_back({child_->in(), static_cast<short>(more ? POLLOUT : 0), 0});

  const auto left = std::min<int64_t>(until.remaining().count() + 1, 60'000);
  const int ready = ::poll(fds.data(), fds.size(), static_cast<int>(left));
  if (ready < 0 && errno != EINTR)
    throw failed(ErrorCode::kUnavailable, std::string("poll: ") + std::strerror(errno));
  if (ready > 0 && (fds.back().revents & POLLERR) != 0) is_deaf_ = true;
}

bool Program::read_stdout(std::vector<Line>& lines) {
  char buffer[1 << 16];
  const ssize_t got = ::read(child_->out(), buffer, sizeof buffer);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got < 0)
    throw failed(ErrorCode::kUnavailable,
                 std::string("reading its stdout: ") + std::strerror(errno));
  if (got == 0) is_mute_ = true;
  take_bytes({buffer, static_cast<size_t>(got)}, lines);
  return got > 0;
}

void Program::take_bytes(std::string_view bytes, std::vector<Line>& lines) {
  // Whole lines are answers; what follows the last one waits for its end.
  for (size_t end = bytes.find('\n'); end != std::string_view::npos; end = bytes.find('\n')) {
    pending_ += bytes.substr(0, end);
    bytes.remove_prefix(end + 1);
    check_length();
    Line line{++num_lines_, std::exchange(pending_, {})};
    if (line.text.find_first_not_of(" \t\r") != std::string::npos)
      lines.push_back(std::move(line));
  }

  pending_ += bytes;
  check_length();
}

void Program::check_length() const {
  if (pending_.size() <= kMaxLineBytes) return;
  const Line line{num_lines_ + 1, {}};
  throw wrong(ErrorCode::kCorrupt, line,
              "has more than " + std::to_string(kMaxLineBytes) +
                  " bytes; expected one JSON object a line: " + quoted_line(pending_));
}

void Program::read_stderr() {
  char buffer[1 << 16];
  while (child_->err() >= 0) {
    const ssize_t got = ::read(child_->err(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return child_->close_err();
    take_stderr({buffer, static_cast<size_t>(got)});
    // A program that writes without end must not keep us from looking at the deadlines.
    if (got < static_cast<ssize_t>(sizeof buffer)) return;
  }
}

void Program::take_stderr(std::string_view bytes) {
  stderr_ += bytes;
  if (stderr_.size() > kStderrBytes) stderr_.erase(0, stderr_.size() - kStderrBytes);

  // Each line is one of the log; a long one is several.
  unlogged_ += bytes;
  size_t begin = 0;
  for (;;) {
    const size_t end = unlogged_.find('\n', begin);
    if (end == std::string::npos && unlogged_.size() - begin < kLogLineBytes) break;
    const size_t size = std::min(end, begin + kLogLineBytes) - begin;
    log_stderr(std::string_view(unlogged_).substr(begin, size));
    begin += size + (end == begin + size ? 1 : 0);
  }
  unlogged_.erase(0, begin);
}

// A program that writes without end does not fill the disk.
void Program::log_stderr(std::string_view line) {
  const auto now = std::chrono::steady_clock::now();
  if (now - log_window_ >= kLogWindow) {
    if (left_out_bytes_ > 0) {
      RETORT_LOG(kWarning) << name_ << ": stderr: " << left_out_bytes_
                           << " bytes were left out, as more than " << kLogBytes
                           << " came in a minute";
    }
    log_window_ = now;
    logged_bytes_ = left_out_bytes_ = 0;
  }
  if (logged_bytes_ + line.size() > kLogBytes) {
    left_out_bytes_ += line.size();
    return;
  }
  logged_bytes_ += line.size() + 1;
  RETORT_LOG(kInfo) << name_ << ": stderr: " << printable(line);
}

void Program::send() {
  while (sent_ < unsent_.size()) {
    const ssize_t wrote =
        write_quietly(child_->in(), unsent_.data() + sent_, unsent_.size() - sent_);
    if (wrote >= 0) {
      sent_ += static_cast<size_t>(wrote);
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      is_deaf_ = true;  // what it has written by now is read first
      return;
    }
  }
  unsent_.clear();
  sent_ = 0;
}

void Program::lost() {
  const std::string ending = child_->ending(kDeathGrace);
  read_stderr();
  const std::string closed = is_mute_ ? "closed its stdout" : "closed its stdin";
  const std::string half =
      pending_.empty() ? ""
                       : "; line " + std::to_string(num_lines_ + 1) +
                             " has no end: " + quoted_line(pending_);
  throw failed(ErrorCode::kPeerLost, "it " + (ending.empty() ? closed : ending) + half);
}

Error Program::failed(ErrorCode code, const std::string& what) const {
  std::string last = stderr_;
  while (!last.empty() && (last.back() == '\n' || last.back() == '\r'))
    last.pop_back();
  return Error(code, shown_ + ": " + what +
                         (last.empty() ? ""
                                       : "; the last it wrote to stderr:\n" +
                                             printable(last, LineEnds::kKept)));
}

Error Program::wrong(ErrorCode code, const Line& line, const std::string& what) const {
  return failed(code, "line " + std::to_string(line.number) + " " + what);
}

}  // namespace retort::environments::detail

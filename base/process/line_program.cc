#include "base/process/line_program.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/printable.h"

namespace retort {
namespace {

constexpr size_t kPieceBytes = 1 << 16;
// A pipe holds 1 MiB at the most (fs/pipe-max-size). No more of stderr is read at once, because a
// program that writes without end must not keep us from looking at the deadline.
constexpr int kPipePieces = (1 << 20) / kPieceBytes;
constexpr int64_t kLongestPollMs = 60'000;

std::string joined(const std::vector<std::string>& argv) {
  std::string text;
  for (const std::string& argument : argv)
    text += (text.empty() ? "" : " ") + argument;
  return text;
}

// An error of the start says whose it is.
Child start_named(const std::string& name, const std::vector<std::string>& argv) {
  try {
    return Child(argv);
  } catch (const Error& error) {
    throw Error(error.code(), name + ": " + error.message());
  }
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace

LineProgram::LineProgram(const std::string& name, const std::vector<std::string>& argv,
                         size_t max_line_bytes, OnStderr on_stderr)
    : name_(name),
      command_(joined(argv)),
      max_line_bytes_(max_line_bytes),
      on_stderr_(std::move(on_stderr)),
      child_(start_named(name, argv)) {}

void LineProgram::add(std::string_view lines) {
  unsent_.erase(0, std::exchange(sent_, 0));
  unsent_ += lines;
}

LineProgram::Heard LineProgram::exchange(Deadline until, int wake) {
  wait(until, wake);
  read_stderr();

  // Answers that it wrote before it closed a pipe count, so they are read before it is given up.
  Heard heard;
  const bool has_read = read_stdout(heard.lines);
  if (!has_read && is_mute_) {
    heard.over = Over::kStdout;
  } else if (!has_read && is_deaf_) {
    heard.over = Over::kStdin;
  }
  send();
  return heard;
}

void LineProgram::wait(Deadline until, int wake) {
  // A descriptor of -1 is not looked at. Its stdin is, even with nothing to send: POLLERR says that
  // it does not read any more.
  const auto writable = static_cast<short>(has_unsent() ? POLLOUT : 0);
  pollfd fds[] = {{child_.in(), writable, 0},
                  {child_.out(), POLLIN, 0},
                  {child_.err(), POLLIN, 0},
                  {wake, POLLIN, 0}};

  // The time left is rounded down: without one more, the last millisecond would be asked for in a
  // busy loop.
  const int64_t left = until.expired() ? 0 : until.remaining().count() + 1;
  const int ready = ::poll(fds, std::size(fds), static_cast<int>(std::min(left, kLongestPollMs)));
  if (ready < 0 && errno != EINTR)
    throw failed(ErrorCode::kUnavailable, std::string("poll: ") + std::strerror(errno));
  if (ready > 0 && (fds[0].revents & POLLERR) != 0) is_deaf_ = true;
}

bool LineProgram::read_stdout(std::vector<Line>& lines) {
  char buffer[kPieceBytes];
  ssize_t got = -1;
  do {
    got = ::read(child_.out(), buffer, sizeof buffer);
  } while (got < 0 && errno == EINTR);

  if (got < 0 && errno == EAGAIN) return false;
  if (got < 0)
    throw failed(ErrorCode::kUnavailable,
                 std::string("reading its stdout: ") + std::strerror(errno));
  if (got == 0) is_mute_ = true;
  take_bytes({buffer, static_cast<size_t>(got)}, lines);
  return got > 0;
}

void LineProgram::take_bytes(std::string_view bytes, std::vector<Line>& lines) {
  // Whole lines are given; what follows the last one waits for its end.
  for (size_t end = bytes.find('\n'); end != std::string_view::npos; end = bytes.find('\n')) {
    grow_line(bytes.substr(0, end), lines);
    end_line(lines);
    bytes.remove_prefix(end + 1);
  }
  grow_line(bytes, lines);
}

// A line that is too long is given there and then, as its end may never come; what follows of it
// is dropped.
void LineProgram::grow_line(std::string_view bytes, std::vector<Line>& lines) {
  if (is_cut_) return;
  pending_ += bytes;
  if (pending_.size() <= max_line_bytes_) return;
  pending_.resize(max_line_bytes_);
  lines.push_back({num_lines_ + 1, std::exchange(pending_, {}), true});
  is_cut_ = true;
}

void LineProgram::end_line(std::vector<Line>& lines) {
  ++num_lines_;
  std::string text = std::exchange(pending_, {});
  const bool was_given = std::exchange(is_cut_, false);
  if (!was_given && !is_blank(text)) lines.push_back({num_lines_, std::move(text)});
}

std::optional<LineProgram::Line> LineProgram::take_half_line() {
  std::string text = std::exchange(pending_, {});
  if (is_blank(text)) return std::nullopt;
  return Line{num_lines_ + 1, std::move(text)};
}

void LineProgram::read_stderr() {
  char buffer[kPieceBytes];
  for (int pieces = 0; pieces < kPipePieces && child_.err() >= 0; ++pieces) {
    const ssize_t got = ::read(child_.err(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return child_.close_err();

    const std::string_view bytes(buffer, static_cast<size_t>(got));
    last_ += bytes;
    if (last_.size() > kLastBytes) last_.erase(0, last_.size() - kLastBytes);
    if (on_stderr_) on_stderr_(bytes);
  }
}

void LineProgram::send() {
  while (has_unsent()) {
    const ssize_t wrote =
        write_quietly(child_.in(), unsent_.data() + sent_, unsent_.size() - sent_);
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

std::string LineProgram::ending(Duration grace) {
  const std::string end = child_.ending(grace);
  read_stderr();
  if (!end.empty()) return end;
  if (is_mute_) return "closed its stdout";
  return is_deaf_ ? "closed its stdin" : "";
}

Error LineProgram::failed(ErrorCode code, const std::string& what) {
  read_stderr();
  std::string last = last_;
  while (!last.empty() && (last.back() == '\n' || last.back() == '\r'))
    last.pop_back();
  const std::string quoted =
      last.empty() ? "" : "; the last it wrote to stderr:\n" + printable(last, LineEnds::kKept);
  return Error(code, name_ + ": command '" + command_ + "': " + what + quoted);
}

}  // namespace retort

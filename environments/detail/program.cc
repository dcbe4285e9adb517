#include "environments/detail/program.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/printable.h"
#include "environments/detail/protocol.h"

namespace retort::environments::detail {
namespace {

constexpr size_t kLogLineBytes = 2000;         // of one line of stderr
constexpr size_t kLogBytes = size_t{1} << 20;  // of stderr, in a minute
constexpr std::chrono::seconds kLogWindow{60};

}  // namespace

Program::Program(const std::string& name, const std::vector<std::string>& argv)
    : name_(name),
      program_(name, argv, kMaxLineBytes, [this](std::string_view bytes) { take_stderr(bytes); }) {}

std::vector<Program::Line> Program::exchange(int wake, Deadline until) {
  LineProgram::Heard heard = program_.exchange(until, wake);
  if (heard.over != LineProgram::Over::kNot) lost();
  return std::move(heard.lines);
}

void Program::check_length(const Line& line) {
  if (!line.is_cut) return;
  throw wrong(ErrorCode::kCorrupt, line,
              "has more than " + std::to_string(kMaxLineBytes) +
                  " bytes; expected one JSON object a line: " + quoted_line(line.text));
}

void Program::take_stderr(std::string_view bytes) {
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

void Program::lost() {
  const std::string ending = program_.ending();
  const std::optional<Line> half = program_.take_half_line();
  const std::string rest =
      half ? "; line " + std::to_string(half->number) + " has no end: " + quoted_line(half->text)
           : "";
  throw failed(ErrorCode::kPeerLost, "it " + ending + rest);
}

Error Program::wrong(ErrorCode code, const Line& line, const std::string& what) {
  return failed(code, "line " + std::to_string(line.number) + " " + what);
}

}  // namespace retort::environments::detail

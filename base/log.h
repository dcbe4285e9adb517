// Log lines: one line, one write(2) to stderr, safe from any thread.
//   I 14:03:07.123456 teacher/1 rpc/agent.cc:88] call done id=7 peer=student/0
// The level comes from the environment variable RETORT_LOG (debug, info, warning, error; default
// info).
#pragma once

#include <sstream>
#include <string>
#include <string_view>

namespace retort {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kFatal };

// The "role/rank" shown in every line; called once, before threads start.
void set_log_identity(std::string identity);
bool log_enabled(LogLevel level);
void write_log_line(LogLevel level, std::string_view text);

namespace detail {
class LogLine {
 public:
  LogLine(LogLevel level, const char* file, int line);
  ~LogLine();
  std::ostream& stream() { return text_; }

 private:
  LogLevel level_;
  std::ostringstream text_;
};
}  // namespace detail

}  // namespace retort

// RETORT_LOG(kInfo) << "step=" << step;
#define RETORT_LOG(level)                                  \
  if (!::retort::log_enabled(::retort::LogLevel::level)) { \
  } else                                                   \
    ::retort::detail::LogLine(::retort::LogLevel::level, __FILE__, __LINE__).stream()

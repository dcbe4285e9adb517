// Log lines: one line, one write(2) to stderr, safe from any thread. Control characters, which
// would move the cursor of a terminal, are written as \x1b and the like.
//   I 14:03:07.123456 teacher/1 rpc/agent.cc:88] call done id=7 peer=student/0
// or, for programs that gather the logs of many hosts, a JSON object (here broken for its length):
//   {"time": "2026-11-23T14:03:07.123456Z", "level": "info", "host": "gpu1", "role": "teacher",
//    "rank": 1, "step": 40, "where": "rpc/agent.cc:88", "message": "call done id=7 peer=student/0"}
// The level comes from the environment variable RETORT_LOG (debug, info, warning, error; default
// info), the form from RETORT_LOG_FORMAT (text, json; default text).
#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>

namespace retort {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kFatal };
enum class LogFormat { kText, kJson };

// The "role/rank" shown in every line; called once, before threads start.
void set_log_identity(std::string identity);
// Instead of RETORT_LOG_FORMAT's; called before threads start.
void set_log_format(LogFormat format);
// The training step that lines of this process belong to, shown in JSON lines from then on.
void set_log_step(int64_t step);
bool log_enabled(LogLevel level);

// Takes lines instead of stderr, for a process that may not wait for whoever reads them.
// Threads: any.
class LogSink {
 public:
  virtual ~LogSink() = default;
  virtual void write(const std::string& line) = 0;
  // Waits, a little, until what was taken is written.
  virtual void drain() = 0;
};
// From now on, until another one is set; null: stderr. A sink that has been set is never destroyed:
// a line may come late. Called before threads start.
void set_log_sink(LogSink* sink);
// What stands in a sink is written before the process ends or becomes another program.
void drain_log();

// `where`: "rpc/agent.cc:88"; empty: the text says it.
void write_log_line(LogLevel level, std::string_view where, std::string_view text);

namespace detail {
class LogLine {
 public:
  LogLine(LogLevel level, const char* file, int line);
  ~LogLine();
  std::ostream& stream() { return text_; }

 private:
  LogLevel level_;
  std::string where_;
  std::ostringstream text_;
};
}  // namespace detail

}  // namespace retort

// RETORT_LOG(kInfo) << "step=" << step;
#define RETORT_LOG(level)                                  \
  if (!::retort::log_enabled(::retort::LogLevel::level)) { \
  } else                                                   \
    ::retort::detail::LogLine(::retort::LogLevel::level, __FILE__, __LINE__).stream()

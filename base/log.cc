#include "base/log.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "base/sizes.h"

namespace retort {
namespace {

// Set once before threads start, read afterwards. Never destroyed: a log line may come late.
std::string& identity() {
  static std::string* value = new std::string("-");
  return *value;
}

LogLevel threshold() {
  static const LogLevel level = [] {
    const char* text = std::getenv("RETORT_LOG");
    const std::string_view name = text ? text : "info";
    if (name == "debug") return LogLevel::kDebug;
    if (name == "warning") return LogLevel::kWarning;
    if (name == "error") return LogLevel::kError;
    return LogLevel::kInfo;
  }();
  return level;
}

}  // namespace

void set_log_identity(std::string value) { identity() = std::move(value); }

bool log_enabled(LogLevel level) { return level >= threshold(); }

void write_log_line(LogLevel level, std::string_view text) {
  // The time of day, to the microsecond.
  const auto now = std::chrono::system_clock::now();
  const auto micros =
      std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count() %
      1000000;
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm local{};
  localtime_r(&seconds, &local);
  char stamp[32];
  std::snprintf(stamp, sizeof stamp, "%02d:%02d:%02d.%06d", local.tm_hour, local.tm_min,
                local.tm_sec, to_int(micros));

  // The line is complete before the one write, so that lines of other threads and processes do not
  // mix with it.
  std::string line;
  line.reserve(text.size() + 64);
  line += "DIWEF"[static_cast<int>(level)];
  line += ' ';
  line += stamp;
  line += ' ';
  line += identity();
  line += ' ';
  line += text;
  line += '\n';
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

namespace detail {

LogLine::LogLine(LogLevel level, const char* file, int line) : level_(level) {
  // The file with its folder: "base/log.cc".
  const char* slash = std::strrchr(file, '/');
  const char* start = file;
  if (slash) {
    const char* p = slash;
    while (p > file && p[-1] != '/')
      --p;
    start = p;
  }
  text_ << start << ":" << line << "] ";
}

LogLine::~LogLine() { write_log_line(level_, text_.str()); }

}  // namespace detail
}  // namespace retort

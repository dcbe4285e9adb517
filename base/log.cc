#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "base/host_name.h"
#include "base/json_text.h"
#include "base/printable.h"
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

LogFormat& format() {
  static LogFormat value = [] {
    const char* text = std::getenv("RETORT_LOG_FORMAT");
    return text != nullptr && std::string_view(text) == "json" ? LogFormat::kJson
                                                               : LogFormat::kText;
  }();
  return value;
}

std::atomic<int64_t>& step() {
  static std::atomic<int64_t> value{-1};
  return value;
}

std::atomic<LogSink*>& sink() {
  static std::atomic<LogSink*> value{nullptr};
  return value;
}

struct Now {
  std::time_t seconds;
  int micros;
};

Now now() {
  const auto time = std::chrono::system_clock::now();
  const auto micros =
      std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
  return {std::chrono::system_clock::to_time_t(time), to_int(micros % 1000000)};
}

// A line of text begins with the time of day, to the microsecond.
std::string text_line(LogLevel level, std::string_view where, std::string_view text) {
  const Now time = now();
  std::tm local{};
  localtime_r(&time.seconds, &local);
  char stamp[40];
  std::snprintf(stamp, sizeof stamp, "%c %02d:%02d:%02d.%06d ", "DIWEF"[static_cast<int>(level)],
                local.tm_hour, local.tm_min, local.tm_sec, time.micros);
  std::string line;
  line.reserve(text.size() + 96);
  line.append(stamp).append(identity()).append(" ");
  if (!where.empty()) line.append(where).append("] ");
  // Whoever sent the text may be a stranger; lines and tabs are in messages of ours too.
  return line.append(printable(text, LineEnds::kKept)).append("\n");
}

std::string json_line(LogLevel level, std::string_view where, std::string_view text) {
  constexpr const char* kNames[] = {"debug", "info", "warning", "error", "fatal"};
  static const std::string* host = new std::string(host_name());
  const Now time = now();
  std::tm utc{};
  gmtime_r(&time.seconds, &utc);
  char stamp[64];
  std::snprintf(stamp, sizeof stamp, "%04d-%02d-%02dT%02d:%02d:%02d.%06dZ", utc.tm_year + 1900,
                utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, time.micros);

  JsonLine line;
  line.add("time", stamp).add("level", kNames[static_cast<int>(level)]).add("host", *host);
  const size_t slash = identity().rfind('/');
  line.add("role", std::string_view(identity()).substr(0, slash));
  if (slash != std::string::npos) line.raw("rank", identity().substr(slash + 1));
  if (const int64_t at = step(); at >= 0) line.add("step", at);
  if (!where.empty()) line.add("where", where);
  return line.add("message", text).str() + "\n";
}

}  // namespace

void set_log_format(LogFormat value) { format() = value; }
void set_log_step(int64_t value) { step() = value; }

void set_log_identity(std::string value) { identity() = std::move(value); }

bool log_enabled(LogLevel level) { return level >= threshold(); }

void write_log_line(LogLevel level, std::string_view where, std::string_view text) {
  // The line is complete before the one write, so that lines of other threads and processes do not
  // mix with it.
  const std::string line =
      format() == LogFormat::kJson ? json_line(level, where, text) : text_line(level, where, text);
  if (LogSink* const other = sink()) {
    other->write(line);
    if (level == LogLevel::kFatal) other->drain();  // the process ends now
    return;
  }
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

void set_log_sink(LogSink* value) { sink() = value; }

void drain_log() {
  if (LogSink* const other = sink()) other->drain();
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
  where_ = std::string(start) + ":" + std::to_string(line);
}

LogLine::~LogLine() { write_log_line(level_, where_, text_.str()); }

}  // namespace detail
}  // namespace retort

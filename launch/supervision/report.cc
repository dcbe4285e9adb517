// The words of a supervisor's result, and which of its failures comes nearest to the cause.
#include <string.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>

#include "base/error.h"
#include "launch/supervision/supervisor.h"

namespace retort::launch {

int ProcessFailure::distance_from_cause() const {
  // Another process's failure may bring about each of these codes. To be told an error by the rank
  // that met it weighs less, because that error still says what went wrong.
  const int told = of_another_rank ? 1 : 0;
  for (const ErrorCode code : {ErrorCode::kPeerLost, ErrorCode::kCollective, ErrorCode::kClosed,
                               ErrorCode::kCancelled, ErrorCode::kTimeout})
    if (error == to_string(code)) return 2 + told;
  return told;
}

std::string ProcessFailure::what() const {
  if (!started) return "could not be started again";
  if (!lost.empty()) return "was lost: " + lost;
  if (exit_code) return "exited with code " + std::to_string(*exit_code);
  if (signal != 0)
    return "was killed by signal " + std::to_string(signal) + " (" + ::strsignal(signal) + ")";
  return "did not end in time and was killed";
}

namespace {

// The first line of a message without the code at its end, as a process writes it into its log.
std::string words_of(const std::string& message) {
  std::string line = message.substr(0, message.find('\n'));
  const size_t code = line.rfind(" [");
  if (code != std::string::npos && line.ends_with(']')) line.resize(code);
  return line;
}

// A process has its launcher's limits, and dies of a tight one without saying which: an allocation
// that fails in a library, a stack that ends.
std::string tight_limits() {
  constexpr rlim_t kSmallStack = rlim_t{1} << 20;
  struct Limit {
    int resource;
    const char *what, *command;
    rlim_t below;  // is tight
  };
  constexpr Limit kLimits[] = {{RLIMIT_AS, "address space", "ulimit -v", RLIM_INFINITY},
                               {RLIMIT_DATA, "data", "ulimit -d", RLIM_INFINITY},
                               {RLIMIT_STACK, "stack", "ulimit -s", kSmallStack}};
  std::string text;
  for (const Limit& limit : kLimits) {
    rlimit now{};
    if (::getrlimit(limit.resource, &now) != 0 || now.rlim_cur >= limit.below) continue;
    text += std::string("  a process may have ") + std::to_string(now.rlim_cur) + " bytes of " +
            limit.what + " here (`" + limit.command +
            "`), which may be what it died of: raise it, best to unlimited\n";
  }
  return text;
}

}  // namespace

// What one process has said is not said again, neither by its log nor by the others who met it.
std::string SupervisorResult::report() const {
  if (!cause) return "";
  std::string text = cause->name() + " failed first: it " + cause->what() + "\n";
  if (!cause->message.empty()) text += "  " + cause->message + "\n";
  if (cause->signal == SIGABRT || cause->signal == SIGSEGV || cause->signal == SIGBUS)
    text += tight_limits();
  text += "  log: " + cause->log.string() + "\n";
  const std::string words = words_of(cause->message);
  for (const auto& line : cause->log_tail)
    if (words.empty() || line.find(words) == std::string::npos) text += "  | " + line + "\n";
  if (!consequences.empty()) {
    text += "then:\n";
    for (const auto& failure : consequences) {
      const bool same = failure.message == cause->message;
      text += "  " + failure.name() + " " + failure.what() +
              (failure.message.empty() ? ""
               : same                  ? ": the same"
                                       : ": " + failure.message) +
              "\n";
    }
  }
  return text;
}

std::vector<std::string> log_tail(const std::filesystem::path& path, int64_t offset, size_t lines) {
  constexpr int64_t kMostBytes = 64 << 10;
  std::ifstream file(path, std::ios::binary);
  file.seekg(0, std::ios::end);
  const int64_t size = file.tellg();
  if (!file || size <= offset) return {};
  // A log may be of any size, so only its end is read.
  const int64_t begin = std::max(offset, size - kMostBytes);
  file.seekg(begin);
  std::vector<std::string> result;
  for (std::string line; std::getline(file, line);)
    result.push_back(line);
  if (result.size() > lines)
    result.erase(result.begin(), result.end() - static_cast<std::ptrdiff_t>(lines));
  return result;
}

}  // namespace retort::launch

#include "base/error.h"

#include <cstdlib>

#include "base/log.h"

namespace retort {
namespace {

std::string compose(ErrorCode code, const std::string& message, const Error::Context& context) {
  std::string text = message;
  text += " [";
  text += to_string(code);
  for (const auto& [key, value] : context)
    text += " " + key + "=" + value;
  return text + "]";
}

// "…/base/error.cc" -> "base/error.cc": the last two path components say enough.
std::string short_path(std::string_view path) {
  auto slash = path.rfind('/');
  if (slash == std::string_view::npos || slash == 0) return std::string(path);
  auto before = path.rfind('/', slash - 1);
  return std::string(before == std::string_view::npos ? path : path.substr(before + 1));
}

}  // namespace

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return "invalid_argument";
    case ErrorCode::kTimeout: return "timeout";
    case ErrorCode::kPeerLost: return "peer_lost";
    case ErrorCode::kClosed: return "closed";
    case ErrorCode::kCancelled: return "cancelled";
    case ErrorCode::kCollective: return "collective";
    case ErrorCode::kRemote: return "remote";
    case ErrorCode::kCorrupt: return "corrupt";
    case ErrorCode::kUnauthenticated: return "unauthenticated";
    case ErrorCode::kMismatch: return "mismatch";
    case ErrorCode::kUnavailable: return "unavailable";
    case ErrorCode::kResourceExhausted: return "resource_exhausted";
  }
  return "unknown";
}

Error::Error(ErrorCode code, std::string message, std::source_location origin)
    : Error(code, std::move(message),
            short_path(origin.file_name()) + ":" + std::to_string(origin.line()), {}) {}

Error::Error(ErrorCode code, std::string message, std::string origin, Context context)
    : std::runtime_error(compose(code, message, context)),
      code_(code),
      message_(std::move(message)),
      origin_(std::move(origin)),
      context_(std::move(context)) {}

int exit_code_for(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return 2;
    case ErrorCode::kUnavailable:
    case ErrorCode::kResourceExhausted: return 3;
    default: return 1;
  }
}

namespace detail {

CheckFailure::CheckFailure(const char* condition, const char* file, int line) {
  message_ << short_path(file) << ":" << line << ": check failed: " << condition << " ";
}

CheckFailure::~CheckFailure() {
  write_log_line(LogLevel::kFatal, "", message_.str());
  std::abort();
}

}  // namespace detail
}  // namespace retort

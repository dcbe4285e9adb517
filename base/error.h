// The one exception type of the project and the check for bugs.
//
// There are two kinds of failure. A *bug* is a broken invariant of ours: RETORT_CHECK logs it and
// aborts the process. *Everything else* comes from peers, files, users or time: throw an Error with
// the code that tells the caller what to do.
#pragma once

#include <cstdint>
#include <source_location>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace retort {

// What happened; each comment says what the caller should do.
enum class ErrorCode : uint8_t {
  kInvalidArgument,  // the user's input is wrong: show it and exit 2, do not retry
  kTimeout,          // a deadline passed: retry if idempotent, else give up
  kPeerLost,         // the other process is gone: wait for its next incarnation or give up
  kClosed,           // the object was closed on this side: stop using it
  kCancelled,        // somebody asked for it: unwind quietly
  kCollective,       // a collective failed: the group is unusable, leave it
  kRemote,           // the remote handler threw something untyped: report it
  kCorrupt,          // bytes that cannot be what they claim: drop the connection or the file
  kUnauthenticated,  // wrong secret or name: give up
  kMismatch,         // two sides disagree (versions, vocabularies, shapes): give up, show both
  // this build or machine cannot do it (missing device, map, backend, port): exit 3
  kUnavailable,
  kResourceExhausted,  // disk, memory or queue is full: free some and retry; exit 3
};
std::string_view to_string(ErrorCode code);

// An error with its code, where it was made, and context pairs ("peer=teacher/0 step=120").
class Error : public std::runtime_error {
 public:
  using Context = std::vector<std::pair<std::string, std::string>>;

  Error(ErrorCode code, std::string message,
        std::source_location origin = std::source_location::current());
  // An error as it was received from another process: origin is its "file:line".
  Error(ErrorCode code, std::string message, std::string origin, Context context);

  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }  // without context
  const std::string& origin() const { return origin_; }    // "folder/file.cc:123"
  const Context& context() const { return context_; }

  // Adds one context pair and returns the error, for `throw Error(...).with("peer", name)` and for
  // `catch (Error& e) { throw e.with(...); }`.
  template <class T>
  Error with(std::string key, const T& value) const {
    std::ostringstream text;
    text << value;
    Context context = context_;
    context.emplace_back(std::move(key), text.str());
    return Error(code_, message_, origin_, std::move(context));
  }

 private:
  ErrorCode code_;
  std::string message_;
  std::string origin_;
  Context context_;
};

// The process exit code a failure maps to: 2 the user's input, 3 the environment, 1 everything
// else.
int exit_code_for(ErrorCode code);

namespace detail {
// Collects the message of a failed RETORT_CHECK; aborts when destroyed.
class CheckFailure {
 public:
  CheckFailure(const char* condition, const char* file, int line);
  [[noreturn]] ~CheckFailure();
  std::ostream& stream() { return message_; }

 private:
  std::ostringstream message_;
};
}  // namespace detail

}  // namespace retort

// A bug of ours if it fails: logs file, line, condition and message, then aborts (the supervisor
// reports it).
#define RETORT_CHECK(condition) \
  if (condition) [[likely]] {   \
  } else                        \
    ::retort::detail::CheckFailure(#condition, __FILE__, __LINE__).stream()

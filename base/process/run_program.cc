#include "base/process/run_program.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "base/deadline.h"
#include "base/error.h"
#include "base/process/child.h"

namespace retort {
namespace {

constexpr size_t kKeptOutputBytes = 2000;
constexpr size_t kPieceBytes = 1 << 14;
// A pipe holds 1 MiB at the most (fs/pipe-max-size). No more of it is read at the end, because what
// the program left behind may print for ever.
constexpr int kPipePieces = (1 << 20) / kPieceBytes;
// The end of a program that prints nothing is seen after this time at the latest.
constexpr int kLookMilliseconds = 50;

// Takes some of what has been printed; true as long as more may come.
bool take_output(int fd, size_t kept_bytes, std::string& last) {
  char buffer[kPieceBytes];
  const ssize_t got = ::read(fd, buffer, sizeof buffer);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  last.append(buffer, static_cast<size_t>(got));
  if (last.size() > kept_bytes) last.erase(0, last.size() - kept_bytes);
  return got > 0;
}

// Takes all that was printed before the program ended, which is no more than a pipe holds.
void take_rest(int fd, size_t kept_bytes, std::string& last) {
  for (int pieces = 0; pieces < kPipePieces && take_output(fd, kept_bytes, last); ++pieces) {
  }
}

}  // namespace

ProgramEnd run_to_end(const std::vector<std::string>& argv, Duration timeout,
                      const std::atomic<bool>& give_up, size_t kept_bytes) {
  Child child(argv, Child::Errors::kWithOutput);
  child.close_in();
  std::string output;
  bool is_open = true;
  const Deadline deadline = Deadline::after(timeout);

  for (;;) {
    // A closed stream is not looked at: poll() would return at once.
    pollfd stream{is_open ? child.out() : -1, POLLIN, 0};
    ::poll(&stream, 1, kLookMilliseconds);
    if (stream.revents != 0) is_open = take_output(child.out(), kept_bytes, output);

    if (const std::string ending = child.ending(Duration(0)); !ending.empty()) {
      // What it printed last may still be in the pipe.
      take_rest(child.out(), kept_bytes, output);
      child.kill();  // and what it has left behind
      const bool is_good = ending == "exited with code 0";
      return {.what = is_good ? "" : "it " + ending, .output = output};
    }
    if (give_up) {
      child.kill();
      return {.what = "it was killed, because the run ends", .output = output};
    }
    if (deadline.expired()) {
      child.kill();
      return {.what = "it was killed after " + format_duration(timeout),
              .output = output,
              .is_late = true};
    }
  }
}

std::string run_program(const std::vector<std::string>& argv, Duration timeout,
                        const std::atomic<bool>& give_up) try {
  const ProgramEnd end = run_to_end(argv, timeout, give_up, kKeptOutputBytes);
  if (end.what.empty()) return "";
  std::string last = end.output;
  while (!last.empty() && (last.back() == '\n' || last.back() == '\r'))
    last.pop_back();
  return last.empty() ? end.what : end.what + "; the last it printed:\n" + last;
} catch (const Error& error) {
  return error.message();
}

}  // namespace retort

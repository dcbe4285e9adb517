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
// Of a pipe, which holds 1 MiB at the most (fs/pipe-max-size); what the program left behind may
// print for ever.
constexpr int kPipePieces = (1 << 20) / kPieceBytes;
// How soon the end of a program that prints nothing is seen.
constexpr int kLookMilliseconds = 50;

// Some of what has been printed to one of its streams; true as long as more may come.
bool take_output(int fd, std::string& last) {
  char buffer[kPieceBytes];
  const ssize_t got = ::read(fd, buffer, sizeof buffer);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  last.append(buffer, static_cast<size_t>(got));
  if (last.size() > kKeptOutputBytes) last.erase(0, last.size() - kKeptOutputBytes);
  return got > 0;
}

// All that was printed before the program ended: no more than a pipe holds.
void take_rest(int fd, std::string& last) {
  for (int pieces = 0; pieces < kPipePieces && take_output(fd, last); ++pieces) {
  }
}

std::string with_output(const std::string& what, std::string last) {
  while (!last.empty() && (last.back() == '\n' || last.back() == '\r'))
    last.pop_back();
  return last.empty() ? what : what + "; the last it printed:\n" + last;
}

}  // namespace

std::string run_program(const std::vector<std::string>& argv, Duration timeout,
                        const std::atomic<bool>& give_up) try {
  Child child(argv);
  child.close_in();
  std::string last;
  bool out_open = true, err_open = true;
  const Deadline deadline = Deadline::after(timeout);

  for (;;) {
    // A closed stream is not looked at: poll() would return at once.
    pollfd streams[] = {{out_open ? child.out() : -1, POLLIN, 0},
                        {err_open ? child.err() : -1, POLLIN, 0}};
    ::poll(streams, 2, kLookMilliseconds);
    if (streams[0].revents != 0) out_open = take_output(child.out(), last);
    if (streams[1].revents != 0) err_open = take_output(child.err(), last);

    if (const std::string ending = child.ending(Duration(0)); !ending.empty()) {
      // What it printed last may still be in the pipes.
      for (const int fd : {child.out(), child.err()})
        take_rest(fd, last);
      child.kill();  // and what it has left behind
      return ending == "exited with code 0" ? "" : with_output("it " + ending, last);
    }
    if (give_up) {
      child.kill();
      return with_output("it was killed, because the run ends", last);
    }
    if (deadline.expired()) {
      child.kill();
      return with_output("it was killed after " + format_duration(timeout), last);
    }
  }
} catch (const Error& error) {
  return error.message();
}

}  // namespace retort

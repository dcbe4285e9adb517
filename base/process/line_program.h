// A program of the user's that is asked by lines of its stdin, and answers by lines of its stdout.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "base/process/child.h"
#include "base/units.h"

namespace retort {

// Use: add() what the program is asked, then exchange() until its answers are there, the deadline
//   has passed, or it is over; then failed() makes the error.
//
//     LineProgram program("tools/0", {"python3", "env.py"});
//     program.add("{\"open\": 7}\n");
//     while (!answered && !deadline.expired()) {
//       const LineProgram::Heard heard = program.exchange(deadline);
//       ... heard.lines ...
//       if (heard.over != LineProgram::Over::kNot)
//         throw program.failed(ErrorCode::kPeerLost, "it " + program.ending());
//     }
//
// Writing and reading take turns in exchange(), so that neither side waits for the other with full
// pipes. A program that ends while one it has started holds its pipes is not over: that one may
// answer, and only the deadline ends the wait.
//
// Memory: of its stdout a line at a time, at most `max_line_bytes`; of its stderr the last
//   kLastBytes; what it is sent until it has read that.
// Errors: all name it: "tools/0: command 'python3 env.py': ...". kUnavailable where the system
//   fails.
// Threads: used by one, which may be another than the one that made it. The destructor closes the
//   program's stdin; if it has not ended two seconds later, its process group is killed.
class LineProgram {
 public:
  static constexpr size_t kLastBytes = 2000;
  static constexpr size_t kMaxLineBytes = size_t{1} << 20;
  // A program that has closed a pipe is about to end, as a rule.
  static constexpr Duration kEndGrace = std::chrono::seconds(3);
  using OnStderr = std::function<void(std::string_view)>;

  // Starts it. `name` is what errors call it by; `max_line_bytes` holds for a line of its stdout,
  // without its end. `on_stderr` gets all that it writes to stderr, in whatever pieces; exchange(),
  // ending() and failed() call it. Errors as those of Child, with that name.
  LineProgram(const std::string& name, const std::vector<std::string>& argv,
              size_t max_line_bytes = kMaxLineBytes, OnStderr on_stderr = nullptr);
  LineProgram(const LineProgram&) = delete;
  LineProgram& operator=(const LineProgram&) = delete;

  const std::string& command() const { return command_; }  // "python3 env.py", for errors

  // To be written, with their ends, as the program takes them.
  void add(std::string_view lines);
  // Whether it has not taken all of that yet.
  bool has_unsent() const { return sent_ < unsent_.size(); }

  struct Line {
    int64_t number;       // of its stdout, from 1
    std::string text;     // without its end
    bool is_cut = false;  // it has more than max_line_bytes; those are the text
  };
  // kStdin, kStdout: it has closed that, and nothing that it wrote before is left to be read.
  enum class Over { kNot, kStdin, kStdout };
  struct Heard {
    std::vector<Line> lines;  // those that are complete by now, without those that are blank
    Over over = Over::kNot;   // with no lines beside it
  };
  // Waits until a pipe or the descriptor `wake` (-1: there is none) is ready, or until `until`, at
  // most a minute; then reads and writes what there is, at most 64 KiB of its stdout. Does not wait
  // if `until` has passed.
  Heard exchange(Deadline until, int wake = -1);
  // What it wrote behind the end of its last line, once; nullopt if that is nothing, or blank.
  std::optional<Line> take_half_line();

  // How it ended: "exited with code 3", "was killed by signal 9". If it has not ended after
  // `grace`, which pipe it has closed: "closed its stdout", "closed its stdin"; "" for neither.
  std::string ending(Duration grace = kEndGrace);
  // Ends it, with its process group, at once. It can be exchanged with no more.
  void kill() { child_.kill(); }
  bool is_killed() const { return child_.pid() < 0; }

  // "NAME: command 'ARGV': WHAT; the last it wrote to stderr:\n..."
  Error failed(ErrorCode code, const std::string& what);

 private:
  void wait(Deadline until, int wake);
  bool read_stdout(std::vector<Line>& lines);  // whether something was there
  void take_bytes(std::string_view bytes, std::vector<Line>& lines);
  void grow_line(std::string_view bytes, std::vector<Line>& lines);
  void end_line(std::vector<Line>& lines);
  void read_stderr();
  void send();

  const std::string name_;
  const std::string command_;
  const size_t max_line_bytes_;
  const OnStderr on_stderr_;
  Child child_;
  std::string unsent_;
  size_t sent_ = 0;        // of unsent_
  bool is_deaf_ = false;   // it has closed its stdin
  bool is_mute_ = false;   // it has closed its stdout
  int64_t num_lines_ = 0;  // of stdout, complete
  std::string pending_;    // of stdout: a line without its end
  bool is_cut_ = false;    // that line was given already, as it is too long
  std::string last_;       // of stderr
};

}  // namespace retort

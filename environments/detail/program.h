// One run of the program of an environment: its lines, its stderr, its end.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "base/process/child.h"

namespace retort::environments::detail {

// Threads: used by one, which may be another than the one that made it. The destructor closes the
// program's stdin; if it has not ended two seconds later, its process group is killed.
class Program {
 public:
  // Starts it. `name` is the environment's. Errors as those of Child, with that name.
  Program(const std::string& name, const std::vector<std::string>& argv);

  // To be written, with their ends, as the program takes them.
  void add(std::string_view lines);

  struct Line {
    int64_t number;  // of its stdout, from 1
    std::string text;
  };
  // Waits until a pipe or the descriptor `wake` is ready, or until `until`; then reads and writes
  // what there is. The lines that are complete by now.
  //
  // Errors: kPeerLost, once all its lines are taken, if it has ended or closed stdin or stdout;
  //   kCorrupt for a line of more than kMaxLineBytes.
  std::vector<Line> exchange(int wake, Deadline until);

  // An error that names the program, and the last that it wrote to stderr.
  Error failed(ErrorCode code, const std::string& what) const;
  // The same, of one of its lines: "line 14: " and `what`.
  Error wrong(ErrorCode code, const Line& line, const std::string& what) const;

 private:
  void wait(int wake, Deadline until);
  bool read_stdout(std::vector<Line>& lines);  // whether something was there
  void take_bytes(std::string_view bytes, std::vector<Line>& lines);
  void check_length() const;
  void read_stderr();
  void take_stderr(std::string_view bytes);
  void log_stderr(std::string_view line);
  void send();
  [[noreturn]] void lost();

  std::string name_;
  std::string shown_;  // "tools/0: command 'python3 env.py'"
  std::unique_ptr<Child> child_;
  std::string unsent_;
  size_t sent_ = 0;        // of unsent_
  bool is_deaf_ = false;   // it has closed its stdin
  bool is_mute_ = false;   // it has closed its stdout
  int64_t num_lines_ = 0;  // of stdout, complete
  std::string pending_;    // of stdout: a line without its end
  std::string stderr_;     // its last bytes
  std::string unlogged_;   // of stderr: a line without its end

  // Of stderr, what went to the log since then, and what did not for being too much.
  std::chrono::steady_clock::time_point log_window_{};
  size_t logged_bytes_ = 0;
  size_t left_out_bytes_ = 0;
};

}  // namespace retort::environments::detail

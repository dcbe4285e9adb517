// One run of the program of an environment: its lines, its errors, and its stderr in the log.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "base/process/line_program.h"

namespace retort::environments::detail {

// Threads and the end of the program: those of LineProgram.
class Program {
 public:
  using Line = LineProgram::Line;

  // Starts it. `name` is the environment's. Errors as those of LineProgram.
  Program(const std::string& name, const std::vector<std::string>& argv);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // To be written, with their ends, as the program takes them.
  void add(std::string_view lines) { program_.add(lines); }
  // Waits until a pipe or the descriptor `wake` is ready, or until `until`; then reads and writes
  // what there is. The lines that are complete by now, whose length is checked by check_length().
  //
  // Errors: kPeerLost, once all its lines are taken, if it has ended or closed stdin or stdout.
  std::vector<Line> exchange(int wake, Deadline until);
  // kCorrupt for a line of more than kMaxLineBytes.
  void check_length(const Line& line);

  // An error that names the program, and the last that it wrote to stderr.
  Error failed(ErrorCode code, const std::string& what) { return program_.failed(code, what); }
  // The same, of one of its lines: "line 14: " and `what`.
  Error wrong(ErrorCode code, const Line& line, const std::string& what);

 private:
  void take_stderr(std::string_view bytes);
  void log_stderr(std::string_view line);
  [[noreturn]] void lost();

  const std::string name_;
  std::string unlogged_;  // of stderr: a line without its end

  // Of stderr, what went to the log since then, and what did not for being too much.
  std::chrono::steady_clock::time_point log_window_{};
  size_t logged_bytes_ = 0;
  size_t left_out_bytes_ = 0;

  LineProgram program_;
};

}  // namespace retort::environments::detail

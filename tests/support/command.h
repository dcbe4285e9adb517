// A program that a test runs to its end, with all that it prints.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace retort::test {

struct CommandResult {
  int exit_code = -1;  // 128 + signal if it was killed by one
  std::string output;  // stdout and stderr together
  double seconds = 0;
};

// A command that runs in its own process group. The destructor kills the group.
class Command {
 public:
  explicit Command(std::vector<std::string> argv);
  ~Command();
  Command(const Command&) = delete;
  int pid() const { return pid_; }
  bool running();
  std::string output() const;  // so far
  void signal(int number);     // to the command's process alone
  // Waits; after `deadline`, or kSlowness times that under a sanitizer, the whole group is killed
  // and exit_code is 124.
  CommandResult wait(std::chrono::seconds deadline = std::chrono::seconds(60));

 private:
  int pid_ = -1, status_ = 0;
  bool reaped_ = false;
  std::filesystem::path output_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace retort::test

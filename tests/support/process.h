// Child processes of a test: the same binary, started by posix_spawn in a process group of its own,
// with a line channel to it and a deadline on every wait. Whatever happens to the test, the child
// does not outlive it.
//
//   int main(int argc, char** argv) {
//     // before GoogleTest looks at argv
//     if (auto role = test::spawned_role()) return run_role(*role);
//     ...
//   }
//   auto child = ChildProcess::spawn({.role = "echo", .args = {address}});
//   // what the child printed to stdout
//   const std::string line = child.read_line(Deadline::after(30s));
//   EXPECT_EQ(child.wait(Deadline::after(30s)), 0);
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"

namespace retort::test {

struct SpawnOptions {
  std::string role;                        // what spawned_role() returns in the child
  std::vector<std::string> args;           // what spawned_args() returns in the child
  std::map<std::string, std::string> env;  // added to this process's environment
  // empty: this binary; otherwise a program that gets `args` as its arguments
  std::string program;
};

class ChildProcess {
 public:
  static ChildProcess spawn(const SpawnOptions& options);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();  // SIGKILL to the whole group, then reaped

  pid_t pid() const { return pid_; }
  // The next line of the child's stdout, without its end. kTimeout, or kPeerLost when the child
  // closed it.
  std::string read_line(Deadline deadline);
  void write_line(const std::string& line);  // to the child's stdin
  void close_stdin();
  void send_signal(int signal);  // to the child alone
  void kill() { send_signal(9); }
  // The exit code, or 128 + the signal that ended it. kTimeout.
  int wait(Deadline deadline);
  bool running();

 private:
  ChildProcess() = default;
  bool reap();
  pid_t pid_ = -1;
  int stdin_ = -1, stdout_ = -1;
  std::string buffer_;
  std::optional<int> exit_code_;
};

// In a spawned child: its role (and from then on the child dies with its parent). In the test
// itself: nullopt.
std::optional<std::string> spawned_role();
std::vector<std::string> spawned_args();
// In a child: one line to the parent, at once.
void say(const std::string& line);
// In a child: the next line from the parent; nullopt when it closed the channel.
std::optional<std::string> hear();

}  // namespace retort::test

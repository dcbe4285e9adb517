// The processes of a run that nobody launches: `retort join` for each, with the variables that a
// scheduler would set.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/recipes/run_support/run_support.h"

namespace retort::test {

// What one process is started with.
struct JoinedProcess {
  std::map<std::string, std::string> variables;
  std::vector<std::string> arguments;  // behind `retort join`
  std::vector<std::string> before;     // a command that runs it, with its arguments
};

// Their commands; all are killed with what they started when it dies.
class JoinedRun {
 public:
  // Writes a secret into `folder`; `host` is where the run meets, at a free port.
  explicit JoinedRun(const fs::path& folder, const std::string& host = "127.0.0.1");

  std::string rendezvous() const;  // "127.0.0.1:4711", "[::1]:4711"
  std::string port() const { return std::to_string(port_); }
  const fs::path& secret() const { return secret_; }

  // One more process, with RETORT_SECRET_FILE, and with RETORT_RENDEZVOUS unless it has that.
  Command& start(JoinedProcess process);
  // One for each rank of a recipe of `size` processes, as RETORT_RANK says.
  void start_all(const fs::path& recipe, int64_t size, const std::vector<std::string>& more = {});

  Command& operator[](size_t index) { return *commands_.at(index); }
  // Waits for all; their results in the order of their start.
  std::vector<CommandResult> wait(std::chrono::seconds deadline = std::chrono::seconds(120));

 private:
  std::string host_;
  int port_ = 0;
  fs::path secret_;
  std::vector<std::unique_ptr<Command>> commands_;
};

// The processes whose command line names this folder, but this one.
std::vector<int> processes_of(const fs::path& folder);

}  // namespace retort::test

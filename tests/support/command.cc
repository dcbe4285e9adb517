#include "tests/support/command.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <system_error>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "tests/support/sanitizer.h"

extern char** environ;

namespace retort::test {
namespace fs = std::filesystem;

Command::Command(std::vector<std::string> argv)
    : output_(fs::temp_directory_path() / ("retort-out-" + random_hex(6))),
      start_(std::chrono::steady_clock::now()) {
  std::vector<char*> args;
  for (auto& arg : argv)
    args.push_back(arg.data());
  args.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, output_.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                   0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  const int failed = posix_spawnp(&pid_, args[0], &actions, &attributes, args.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (failed) throw Error(ErrorCode::kUnavailable, "cannot start " + argv[0]);
}

Command::~Command() {
  if (!reaped_) {
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, &status_, 0);
  }
  std::error_code ignored;
  fs::remove(output_, ignored);
}

bool Command::running() {
  if (!reaped_ && ::waitpid(pid_, &status_, WNOHANG) == pid_) reaped_ = true;
  return !reaped_;
}

std::string Command::output() const { return read_file(output_); }

void Command::signal(int number) {
  if (running()) ::kill(pid_, number);
}

CommandResult Command::wait(std::chrono::seconds deadline) {
  CommandResult result;
  const auto end = std::chrono::steady_clock::now() + deadline * kSlowness;
  while (running() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  if (running()) {
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, &status_, 0);
    reaped_ = true;
    result.exit_code = 124;
  } else {
    result.exit_code = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  result.output = read_file(output_);
  return result;
}

}  // namespace retort::test

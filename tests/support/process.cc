#include "tests/support/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <thread>
#include <utility>

#include "base/error.h"

extern char** environ;

namespace retort::test {
namespace {

constexpr const char* kRole = "RETORT_TEST_ROLE";
constexpr const char* kParent = "RETORT_TEST_PARENT";
constexpr const char* kArgs = "RETORT_TEST_ARGS";  // one a line

struct PipePair {
  int read = -1, write = -1;
  PipePair() {
    int fds[2];
    RETORT_CHECK(pipe2(fds, O_CLOEXEC) == 0) << std::strerror(errno);
    read = fds[0];
    write = fds[1];
  }
};

std::vector<std::string> environment(const SpawnOptions& options) {
  auto added = options.env;
  if (options.program.empty()) {
    added[kRole] = options.role;
    added[kParent] = std::to_string(getpid());
    for (const auto& arg : options.args)
      added[kArgs] += arg + "\n";
  }
  std::vector<std::string> entries;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    if (added.count(text.substr(0, text.find('='))) == 0) entries.push_back(text);
  }
  for (const auto& [key, value] : added)
    entries.push_back(key + "=" + value);
  return entries;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (auto& text : texts)
    result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace

ChildProcess ChildProcess::spawn(const SpawnOptions& options) {
  const PipePair to_child, from_child;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to_child.read, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, from_child.write, STDOUT_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  std::string program = options.program;
  if (program.empty()) {
    char path[4096];
    const auto length = readlink("/proc/self/exe", path, sizeof path);
    RETORT_CHECK(length > 0) << "readlink /proc/self/exe";
    program.assign(path, static_cast<size_t>(length));
  }
  std::vector<std::string> arguments{program};
  if (!options.program.empty())
    arguments.insert(arguments.end(), options.args.begin(), options.args.end());
  auto env = environment(options);
  ChildProcess child;
  const int failure = posix_spawn(&child.pid_, program.c_str(), &actions, &attributes,
                                  pointers(arguments).data(), pointers(env).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  ::close(to_child.read);
  ::close(from_child.write);
  child.stdin_ = to_child.write;
  child.stdout_ = from_child.read;
  if (failure != 0) {
    child.pid_ = -1;
    throw Error(ErrorCode::kUnavailable, std::string("posix_spawn: ") + std::strerror(failure))
        .with("program", program);
  }
  return child;
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      stdin_(std::exchange(other.stdin_, -1)),
      stdout_(std::exchange(other.stdout_, -1)),
      buffer_(std::move(other.buffer_)),
      exit_code_(other.exit_code_) {}

ChildProcess::~ChildProcess() {
  if (pid_ > 0) {
    // the group, so grandchildren too; the group exists until its leader is reaped
    ::kill(-pid_, SIGKILL);
    if (!exit_code_) ::waitpid(pid_, nullptr, 0);
  }
  close_stdin();
  if (stdout_ >= 0) ::close(stdout_);
}

std::string ChildProcess::read_line(Deadline deadline) {
  for (;;) {
    if (const auto end = buffer_.find('\n'); end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    pollfd entry{stdout_, POLLIN, 0};
    const int ready = ::poll(
        &entry, 1, static_cast<int>(std::min<int64_t>(deadline.remaining().count(), 1 << 30)));
    if (ready == 0)
      throw Error(ErrorCode::kTimeout, "the child printed no line by the deadline")
          .with("pid", pid_);
    if (ready < 0 && errno == EINTR) continue;
    char bytes[4096];
    const auto got = ::read(stdout_, bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      throw Error(ErrorCode::kPeerLost, "the child closed its output")
          .with("pid", pid_)
          .with("unread", buffer_);
    buffer_.append(bytes, static_cast<size_t>(got));
  }
}

void ChildProcess::write_line(const std::string& line) {
  const std::string text = line + "\n";
  struct sigaction ignore {
  }, before{};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &before);
  const auto written = ::write(stdin_, text.data(), text.size());
  sigaction(SIGPIPE, &before, nullptr);
  if (written != static_cast<ssize_t>(text.size()))
    throw Error(ErrorCode::kPeerLost, "the child does not read its input").with("pid", pid_);
}

void ChildProcess::close_stdin() {
  if (stdin_ >= 0) ::close(stdin_);
  stdin_ = -1;
}

void ChildProcess::send_signal(int signal) {
  if (!exit_code_) ::kill(pid_, signal);
}

bool ChildProcess::reap() {
  if (exit_code_) return true;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return false;
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return true;
}

bool ChildProcess::running() { return !reap(); }

int ChildProcess::wait(Deadline deadline) {
  while (!reap()) {
    if (deadline.expired())
      throw Error(ErrorCode::kTimeout, "the child did not end by the deadline").with("pid", pid_);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return *exit_code_;
}

std::optional<std::string> spawned_role() {
  const char* role = std::getenv(kRole);
  const char* parent = std::getenv(kParent);
  if (!role || !parent) return std::nullopt;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (std::to_string(getppid()) != parent) _exit(97);  // it died before the line above
  return role;
}

std::vector<std::string> spawned_args() {
  std::vector<std::string> args;
  const char* text = std::getenv(kArgs);
  std::string rest = text ? text : "";
  for (size_t end; (end = rest.find('\n')) != std::string::npos; rest.erase(0, end + 1))
    args.push_back(rest.substr(0, end));
  return args;
}

void say(const std::string& line) { std::cout << line << std::endl; }

std::optional<std::string> hear() {
  std::string line;
  if (!std::getline(std::cin, line)) return std::nullopt;
  return line;
}

}  // namespace retort::test

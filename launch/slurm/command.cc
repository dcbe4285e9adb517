#include "launch/slurm/command.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "base/deadline.h"
#include "base/error.h"
#include "base/process/exec_arguments.h"
#include "base/process/pipe.h"
#include "launch/backends/child_process.h"
#include "launch/backends/find_program.h"

namespace retort::launch {
namespace {

constexpr std::chrono::milliseconds kCommandTick{100};

}  // namespace

std::string ask_slurm(const std::string& program, const std::vector<std::string>& arguments,
                      Duration limit) {
  Pipe pipe = make_pipe();
  ChildProcess child({.program = find_program(program, "launch.backend: slurm", "slurm-client"),
                      .arguments = arguments,
                      .environment = own_environment(),
                      .log = "/dev/null",
                      .output_fd = pipe.in.get()});
  pipe.in.reset();

  // To the end of its output; what it may have left behind holds that open no longer than it lives.
  std::string text;
  const Deadline deadline = Deadline::after(limit);
  std::array<char, 4096> bytes;
  for (bool open = true; open;) {
    pollfd entry{pipe.out.get(), POLLIN, 0};
    const bool ended = child.try_reap().has_value();
    if (::poll(&entry, 1, ended ? 0 : static_cast<int>(kCommandTick.count())) > 0) {
      const ssize_t got = ::read(pipe.out.get(), bytes.data(), bytes.size());
      open = got > 0;
      if (open) text.append(bytes.data(), static_cast<size_t>(got));
    } else if (ended) {
      open = false;
    }
    if (deadline.expired())
      throw Error(ErrorCode::kTimeout,
                  program + " did not end within " + format_duration(limit) + "; it said: " + text);
  }

  std::optional<int> status;
  while (!(status = child.try_reap()) && !deadline.expired()) {
    pollfd end{child.pidfd(), POLLIN, 0};
    ::poll(&end, 1, static_cast<int>(kCommandTick.count()));
  }
  if (!status || !WIFEXITED(*status) || WEXITSTATUS(*status) != 0)
    throw Error(ErrorCode::kUnavailable, program + " failed: " + text);
  return text;
}

}  // namespace retort::launch

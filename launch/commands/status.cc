#include "launch/commands/status.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/host_name.h"
#include "launch/commands/command_line.h"
#include "launch/status/status_file.h"
#include "launch/status/status_table.h"
#include "launch/status/terminal_text.h"

namespace retort::launch {
namespace {

constexpr std::chrono::seconds kLookAgain{1};

// A run as it was just now.
struct Look {
  RunStatus status;
  bool lost = false;
  bool over() const { return lost || status.ended(); }
  int exit_code() const { return lost ? 1 : status.exit_code.value_or(0); }
};

// Nothing is known of another host's processes, so that one of them may run.
bool may_run(pid_t pid, const std::string& host) {
  if (host != host_name()) return true;
  return ::kill(pid, 0) == 0 || errno != ESRCH;
}

Look look_at(const std::filesystem::path& run) {
  Look look{.status = read_run_status(run)};
  look.lost = launcher_is_lost(look.status, StatusFile::Clock::now(),
                               may_run(look.status.launcher_pid, look.status.launcher_host));
  return look;
}

// Prints looks at a run; on a terminal each in place of the one before.
class Screen {
 public:
  explicit Screen(bool in_place) : in_place_(in_place) {}

  // False when nobody reads any more.
  bool show(const Look& look) {
    std::string text;
    if (in_place_ && drawn_ > 0) text += "\x1b[" + std::to_string(drawn_) + "A\r";
    const auto lines = render_status(look.status, StatusFile::Clock::now(), look.lost,
                                     in_place_ ? terminal_columns(STDOUT_FILENO) : 0);
    for (const auto& line : lines)
      text += line + (in_place_ ? "\x1b[K\n" : "\n");
    text += in_place_ ? "\x1b[J" : "";

    drawn_ = lines.size();
    return std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  }

 private:
  const bool in_place_;
  size_t drawn_ = 0;
};

}  // namespace

int run_status(const StatusCommand& command) {
  Screen screen(command.watch && ::isatty(STDOUT_FILENO) != 0);
  Look look = look_at(command.run);
  while (screen.show(look) && command.watch && !look.over()) {
    std::this_thread::sleep_for(kLookAgain);
    look = look_at(command.run);
  }
  return look.exit_code();
}

void add_status(Command program) {
  Command c = program.command("status", "what a run is doing: its state and its processes");
  StatusCommand& o = c.runs(run_status);
  c.option("run", o.run, "the run's folder (output_dir)").required();
  c.flag("--watch", o.watch, "again each second, until the run has ended");
}

}  // namespace retort::launch

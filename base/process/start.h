// The start of another program: the one way that this system has, for all that start one.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"

namespace retort {

struct ProgramStart {
  std::string program;                 // its file; PATH is not searched (path_in_environment)
  std::vector<std::string> arguments;  // of its main(), so the first is its own name

  // All of it, "NAME=value"; none: that of this process.
  std::optional<std::vector<std::string>> environment = {};

  // What it has open: its descriptors 0, 1, 2 and on are these of ours, in this order, and it has
  // no others, whatever flags those have. kNothing is /dev/null.
  static constexpr int kNothing = -1;
  std::vector<int> descriptors{kNothing, kNothing, kNothing};

  // The process group that it is in, of this process's session; 0: it leads a new one.
  pid_t group = 0;

  // SIGKILL comes to it when the *thread* that started it ends, and so when this process does, even
  // by SIGKILL. (PR_SET_PDEATHSIG, which follows the thread.)
  bool ends_with_thread = false;

  // It begins with all signals blocked instead of none.
  bool blocks_signals = false;
};

struct StartedProgram {
  pid_t pid = -1;  // a child of this process, for whoever started it to reap; -1: none was started
  int error = 0;   // errno of what failed: the new process, its descriptors, or exec
  bool is_guards = false;  // the error is that of its guard (group_guard.h), not its own
};

// Starts it with default signals and returns when it runs or has failed; what failed is reaped.
//
// Not by a fork, which copies the page tables of a process that holds a model, and its locks as
// they happen to be: until exec the new process borrows this one's memory (vfork), and the calling
// thread waits.
// Threads: any. All signals of the calling one are blocked meanwhile.
StartedProgram start_program(const ProgramStart& options);

// Throws for one that was not started: `what` ("cannot start 'sbatch'"), whose fault it is, and the
// reason. kResourceExhausted where the system has no room for it (processes, memory, descriptors),
// kUnavailable where its guard cannot be started, else kInvalidArgument.
[[noreturn]] void throw_start_error(const std::string& what, const StartedProgram& started);

// waitpid of a child that has ended or is about to. True also if somebody else has reaped it; false
// if it has not ended after `timeout`, as one in the middle of a system call that no signal
// interrupts: its number is then to be given up, and init reaps it after this process.
// Threads: any.
bool reap(pid_t pid, Duration timeout = std::chrono::seconds(5));

// Where PATH has a program; a name with a slash is a path already. "" if it is nowhere.
std::string path_in_environment(const std::string& name);

}  // namespace retort

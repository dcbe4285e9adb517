// How the tasks of a step ended, from what its srun says.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace retort::launch {

// As waitpid gives it, from lines such as
//
//   srun: error: n2: task 1: Killed
//   srun: error: n[1-2]: tasks 0-3,5: Exited with exit code 3
//   srun: error: n2: task 1: Out Of Memory
//
// nullopt while nothing is said of the task, and where a node was lost: what srun says of tasks
// there it does not know from them. A pure function.
std::optional<int> task_end_of(std::string_view srun_words, int64_t task);

// The exit code of srun as the status of a task: 137 is a death by SIGKILL.
int task_status_of(int exit_code);

}  // namespace retort::launch

// Variables of a role on their way to its processes through a program that starts them (srun), for
// which they are not meant: LD_LIBRARY_PATH or SLURM_* would change what that program does.
#pragma once

#include <map>
#include <string>

namespace retort::launch {

// The variables under the names that they travel by: RETORT_ENV_<name>.
std::map<std::string, std::string> carried_variables(
    const std::map<std::string, std::string>& variables);

// Gives those that came to this process so their own names. Before threads start.
void take_carried_variables();

}  // namespace retort::launch

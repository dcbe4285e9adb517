// The part of `retort doctor` that needs the other hosts of a run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launch/doctor/finding.h"
#include "launch/process/signal_catcher.h"
#include "recipes/document/recipe.h"

namespace retort::launch::doctor {

struct OtherHosts {
  std::vector<Finding> findings;
  // The address of this host, as the first host that answered sees it.
  std::optional<std::string> launcher_address;
};

// Connects to every host of `launch.hosts` as a launcher would, has it examine itself, and compares
// what they see: the program, the run's folder, models and data, the clock. What it writes into
// output_dir for that, and the folder if there was none, is removed again.
//
// Time: a host that does not answer takes a minute; all are asked at once.
// Errors: kCancelled when a signal comes.
OtherHosts examine_hosts(const recipes::Recipe& recipe, const SignalCatcher& signals);

}  // namespace retort::launch::doctor

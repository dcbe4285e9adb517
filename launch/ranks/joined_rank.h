// What a rank that joined its run by itself does besides its work. Whoever started it (a scheduler)
// sees its exit code; the process that keeps the run hears of its end over its connection alone.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "launch/process/signal_catcher.h"
#include "launch/supervision/launcher_link.h"

namespace retort::launch {

struct JoinedRank {
  bool driving = false;
  LauncherLink& launcher;
  SignalCatcher& signals;
  // The work: its exit code, or nullopt if it was asked to end and had nothing to save.
  std::function<std::optional<int>()> work;
  std::function<std::string()> state;  // what it reported last, asked when the work is over
};

// Does the work, tells the launcher of signals while it lasts, and at last how the process ends.
//
// Exit code: that of the work, and where it is 0
//   of a driving rank  0 after the last step; 4 if it was stopped before, with a checkpoint
//   of a serving rank  0 when it was asked to end; 1 if whoever keeps the run is lost
// A driving rank that was asked to end and had nothing to save: 1.
int run_joined_rank(const JoinedRank& rank);

}  // namespace retort::launch

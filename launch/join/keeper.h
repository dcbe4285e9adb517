// What whoever keeps a run does to have processes that join it: student/0 of a run that nobody
// launched (launch/commands/join.cc), or a launcher that had them started elsewhere (launch/slurm).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launch/backends/rank_spec.h"
#include "launch/join/join_protocol.h"
#include "recipes/document/recipe.h"

namespace retort::launch {

// A hash of the resolved recipe without its output_dir, because hosts may see the run's folder at
// different places.
std::string recipe_digest(recipes::Recipe recipe);

struct KeeperOptions {
  const recipes::Recipe& recipe;
  MeetingAccess access;   // the store's address is that of the start
  std::string mode = {};  // MeetingStart::mode
  // The process that is no guest, because this one has it as a child; "": there is none.
  std::string own_rank = {};
  std::string advertise = {};  // of that process
  // Asked again and again while the others are waited for: whether to give up. May throw why
  // nobody else will come.
  std::function<bool()> is_stopping = {};
  // Called with all that have come; throws why they cannot be a run, which they are told.
  std::function<void(const std::vector<Member>&)> check = {};
};

// Waits for all processes, shares out the cores of each machine, and tells each what it is.
class Keeper {
 public:
  explicit Keeper(KeeperOptions options) : options_(std::move(options)) {}

  // All processes of this start; those that joined can be told what they are for as long as this
  // object lives. Errors of MeetingHost::wait_for, within launch.load_timeout.
  std::vector<ProcessSpec> processes(const RunFolder& folder, const RunStart& start);

 private:
  std::vector<ProcessSpec> specs(const RunFolder& folder, const RunStart& start,
                                 const std::vector<Member>& members);

  const KeeperOptions options_;
  std::optional<MeetingHost> host_;
};

}  // namespace retort::launch

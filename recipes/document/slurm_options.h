// `launch.slurm`: what a job of Slurm is asked for.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/options.h"

namespace retort::recipes {

struct SlurmOptions {
  std::optional<std::string> partition;
  std::optional<std::string> account;
  std::optional<std::string> time;
  std::optional<std::string> gres;
  std::vector<std::string> args;
  bool requeue = true;

  template <class V>
  void fields(V& visit) {
    visit("partition", partition, "null: the cluster's default");
    visit("account", account, "null: the user's default");
    visit("time", time,
          "limit of the job, as sbatch reads it: minutes, hours:minutes:seconds, days-hours; null: "
          "the partition's");
    visit("gres", gres, "of each node, as sbatch reads it: gpu:4");
    visit("args", args, "more arguments of sbatch, e.g. [--qos=high, --nodes=2]");
    visit("requeue", requeue,
          "the job is queued again when its time is nearly up or a node is lost, and the run "
          "goes on from its last checkpoint");
  }
  void validate() const;
};

}  // namespace retort::recipes

// The job of Slurm that this process is part of, and what its cluster is set to.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/units.h"
#include "launch/join/rank_identity.h"

namespace retort::launch {

struct SlurmJob {
  std::string id;
  std::string first_host = {};  // of its nodes
  int64_t num_nodes = 1;
  int64_t cpus_per_task = 1;  // that its tasks were asked for with
  bool was_requeued = false;  // it has begun before
};

// Of these environment variables, which salloc and sbatch set; nullopt outside of an allocation.
// kInvalidArgument where one of them is no number.
std::optional<SlurmJob> slurm_job(const Variables& variables);

// What Slurm gives a process between asking it to end and killing it, from the output of
// `scontrol show config`; kCorrupt where that does not say it.
Duration kill_wait_of(std::string_view config);

// kInvalidArgument where a run that is asked to end may take longer than that.
void check_stop_timeout(Duration stop_timeout, Duration kill_wait);

}  // namespace retort::launch

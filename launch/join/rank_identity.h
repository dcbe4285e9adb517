// Which rank of a run a process is and where its run meets, from what started it: arguments, our
// own variables, or those of a scheduler.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/named_list.h"
#include "recipes/document/recipe.h"

namespace retort::launch {

using Variables = std::map<std::string, std::string>;
// The environment of this process.
Variables own_variables();

struct JoinArguments {
  std::optional<std::string> role;
  std::optional<int64_t> rank;
  std::optional<std::string> rendezvous, secret_file, advertise;
};

struct JoinPlace {
  std::optional<std::string> role;
  int64_t rank = 0;  // of the role; without one, among all processes of the run
  // How many processes were started with it, and the variable that says so.
  std::optional<int64_t> size;
  std::string size_from;
  // Where the run meets, as far as it is said; the recipe's launch.rendezvous may say the rest.
  std::string host;
  uint16_t port = 0;                   // 0: not said
  bool is_explicit = false;            // by an argument or RETORT_RENDEZVOUS, not by a scheduler
  std::string why_no_port;             // where a scheduler's port cannot be used
  std::string secret_file, advertise;  // "": not said
};

// A pure function. What an argument says comes first, then RETORT_*, then a scheduler:
//
//              rank                    processes             host of the rendezvous    port
//   Slurm      SLURM_PROCID            SLURM_STEP_NUM_TASKS  first of                  -
//                                      or SLURM_NTASKS       SLURM_JOB_NODELIST
//   Open MPI   OMPI_COMM_WORLD_RANK    OMPI_COMM_WORLD_SIZE  -                         -
//   torchrun   RANK                    WORLD_SIZE            MASTER_ADDR               MASTER_PORT
//   Kubernetes JOB_COMPLETION_INDEX    -                     pod 0 of the Job, from    -
//                                                            the pod's full name
// `full_name`: of this host, "train-3.train.default.svc.cluster.local"; for Kubernetes alone.
//
// Errors: kInvalidArgument naming the variable that is no number, the two that contradict each
//   other, or all that were looked for where none says a rank.
JoinPlace find_place(const JoinArguments& arguments, const Variables& variables,
                     const std::string& full_name);

// "n[03-05,9],x1" -> "n03": the first host of a list in Slurm's short form; kInvalidArgument.
std::string first_slurm_host(const std::string& list);

struct RankName {
  std::string role;
  int64_t rank = 0;
};
// The place among the recipe's roles. A rank without a role counts the student's first, then the
// roles as they are written. kInvalidArgument for a role or rank that the recipe does not have, and
// where not as many processes were started as it needs.
RankName rank_of_place(const JoinPlace& place, const recipes::Recipe& recipe);

// Where the run meets: what is said explicitly, then the recipe, then the scheduler.
// kInvalidArgument where nothing says a host or a port, and where both say different ones.
struct MeetingPoint {
  std::string host;
  uint16_t port = 0;
};
MeetingPoint meeting_point(const JoinPlace& place, const recipes::RendezvousOptions& options);

}  // namespace retort::launch

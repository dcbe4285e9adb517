#include "launch/slurm/job.h"

#include <charconv>

#include "base/error.h"

namespace retort::launch {
namespace {

std::string value_of(const Variables& variables, const std::string& name) {
  const auto found = variables.find(name);
  return found == variables.end() ? "" : found->second;
}

// `otherwise` where the variable is not set.
int64_t count_of(const Variables& variables, const std::string& name, int64_t otherwise) {
  const std::string text = value_of(variables, name);
  if (text.empty()) return otherwise;
  int64_t count = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), count);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size() || count < 0)
    throw Error(ErrorCode::kInvalidArgument, name + " is '" + text + "', expected a number");
  return count;
}

}  // namespace

std::optional<SlurmJob> slurm_job(const Variables& variables) {
  SlurmJob job{.id = value_of(variables, "SLURM_JOB_ID")};
  if (job.id.empty()) return std::nullopt;
  job.first_host = first_slurm_host(value_of(variables, "SLURM_JOB_NODELIST"));
  job.num_nodes = count_of(variables, "SLURM_JOB_NUM_NODES", 1);
  job.cpus_per_task = count_of(variables, "SLURM_CPUS_PER_TASK", 1);
  job.was_requeued = count_of(variables, "SLURM_RESTART_COUNT", 0) > 0;
  return job;
}

Duration kill_wait_of(std::string_view config) {
  constexpr std::string_view kKey = "\nKillWait";
  const size_t key = config.find(kKey);
  const size_t digit = config.find_first_not_of(" =", key + kKey.size());
  int64_t seconds = -1;
  if (key != std::string_view::npos && digit != std::string_view::npos)
    std::from_chars(config.data() + digit, config.data() + config.size(), seconds);
  if (seconds < 0)
    throw Error(ErrorCode::kCorrupt, "scontrol show config does not say KillWait in seconds");
  return std::chrono::seconds(seconds);
}

void check_stop_timeout(Duration stop_timeout, Duration kill_wait) {
  if (stop_timeout <= kill_wait) return;
  throw Error(ErrorCode::kInvalidArgument,
              "launch.stop_timeout is " + format_duration(stop_timeout) +
                  ", but this cluster kills what has not ended " + format_duration(kill_wait) +
                  " after it was asked to: raise KillWait in slurm.conf, or write at most that");
}

}  // namespace retort::launch

#include "recipes/document/launch_options.h"

#include "base/error.h"

namespace retort::recipes {

void LaunchOptions::validate() const {
  if (collective_timeout.count() <= 0)
    throw Error(ErrorCode::kInvalidArgument, "collective_timeout must be above 0");
  if (stop_timeout.count() <= 0)
    throw Error(ErrorCode::kInvalidArgument, "stop_timeout must be above 0");
  if (load_timeout.count() <= 0)
    throw Error(ErrorCode::kInvalidArgument, "load_timeout must be above 0");
  if (max_restarts < 0)
    throw Error(ErrorCode::kInvalidArgument, "max_restarts must not be negative");
  if (min_dp && *min_dp < 1) throw Error(ErrorCode::kInvalidArgument, "min_dp must be at least 1");
  if (metrics_port && (*metrics_port < 0 || *metrics_port > 65535))
    throw Error(ErrorCode::kInvalidArgument,
                "metrics_port must be a port, 1 to 65535, or 0: any that is free");
  if (!metrics_command.empty() && metrics_command.front().empty())
    throw Error(ErrorCode::kInvalidArgument,
                "metrics_command begins with an empty word; write a program and its arguments");
}

void LaunchOptions::resolve(bool is_stop_timeout_written) {
  // Slurm kills what has not ended KillWait after it was asked to, which is 30 s unless raised.
  constexpr Duration kWithinKillWait{25'000};
  if (backend == Backend::kSlurm && !is_stop_timeout_written) stop_timeout = kWithinKillWait;
}

}  // namespace retort::recipes

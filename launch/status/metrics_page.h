// What a run's numbers look like to Prometheus.
#pragma once

#include <optional>
#include <string>

#include "launch/status/metrics_tail.h"
#include "launch/status/run_status.h"

namespace retort::launch {

// Prometheus' text form, every sample with the label `run`:
//   retort_run_state{state="running"} 1     the run's, retort_process_state each process's
//   retort_step 40, retort_max_steps, retort_fraction, retort_eta_seconds
//   retort_process_step, retort_process_restarts, retort_process_report_age_seconds
//   retort_logged_<name>   each number of the last row of metrics.jsonl and of the last evaluation,
//                          characters that no name may have as _: retort_logged_rewards_chosen
std::string metrics_page(const RunStatus& status, RunStatus::Time now,
                         const std::optional<LoggedStep>& last,
                         const std::optional<LoggedStep>& last_eval);

}  // namespace retort::launch

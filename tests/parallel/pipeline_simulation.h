// A pipeline without processes: every stage runs its list of actions, receives in its order, and
// sends without waiting until too many of its messages are on their way. The result says what is
// wrong with the lists, what they hold in memory and how long they take.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/pipeline_schedule.h"

namespace retort::parallel::testing {

struct PipelineCase {
  int64_t pp = 1;
  int64_t virtual_pp = 1;
  int64_t micro_batches = 1;
  // Messages of one stage that may wait for their receivers; a stage with more waits for its
  // oldest. 0: a send waits for its receiver.
  int64_t sends_in_flight = kMinimumSendsInFlight;
  bool forward_only = false;
  // Time of a whole stage; a chunk takes 1 / virtual_pp of it. Messages take none.
  double forward_time = 1;
  double backward_time = 2;
};

struct PipelineRun {
  struct Step {
    PipelineAction action;
    double start = 0;
    double end = 0;
  };
  std::vector<std::string> problems;     // empty: the lists are right
  std::vector<std::vector<Step>> steps;  // by stage
  // by stage: chunks between their forward and their backward at once
  std::vector<int64_t> peak_live;
  double time = 0;      // until the last stage is done
  double idle() const;  // idle time in relation to the work of a stage
};

// The lists that pipeline_schedule() gives.
std::vector<std::vector<PipelineAction>> all_stages(const PipelineCase& c);

// Checks that every list has each (chunk, micro-batch) once and in order, then runs them. One
// problem a line: what is missing, double or too early; a message that is not the one expected; and
// for a deadlock what each stage waits for.
PipelineRun simulate(const PipelineCase& c, const std::vector<std::vector<PipelineAction>>& stages);

}  // namespace retort::parallel::testing

// The best model of a run by a metric of its evaluations, and when waiting for a better one ends.
#pragma once

#include <cstdint>
#include <string>

#include "recipes/document/train_options.h"
#include "recipes/run/metrics/metrics_writer.h"

namespace retort::recipes {

// What a run knows of its best model; part of its checkpoints (state/loop.json).
struct BestModel {
  std::string metric;  // "eval_loss"; "": none has been asked for
  int64_t step = 0;    // of the best evaluation so far; 0: there was none
  double value = 0;    // its metric
  bool greater_is_better = false;
  int64_t evaluations_since = 0;  // that were not better, the last ones in a row
};

// kInvalidArgument if `best`, as a checkpoint has it, is of another metric than the recipe's, or
// looks for the other end of it.
void check_same_metric(const BestModelOptions& options, const BestModel& best);

// Returns the metric of an evaluation's row. kInvalidArgument, listing what the row has, if it
// lacks the metric.
double metric_of(const MetricsRow& row, const std::string& metric);

// Takes an evaluation's metric into `best`. True: it is the best so far. As in transformers'
// Trainer one that is only as good is not, nor one that is not a finite number.
bool see_evaluation(const BestModelOptions& options, int64_t step, double value, BestModel& best);

// Whether as many evaluations in a row as train.early_stopping_patience were not better.
bool is_patience_over(const BestModelOptions& options, const BestModel& best);

// "eval_loss has not improved in 3 evaluations (train.early_stopping_patience); the best is 1.25,
// of step 40".
std::string why_stopped_early(const BestModel& best);

}  // namespace retort::recipes

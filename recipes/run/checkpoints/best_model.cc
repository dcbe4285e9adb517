#include "recipes/run/checkpoints/best_model.h"

#include <cmath>
#include <sstream>
#include <variant>

#include "base/error.h"

namespace retort::recipes {

void check_same_metric(const BestModelOptions& options, const BestModel& best) {
  if (best.metric.empty() || options.metric.empty()) return;
  if (best.metric == options.metric && best.greater_is_better == options.greater_is_better) return;
  throw Error(ErrorCode::kInvalidArgument,
              "the run has looked for its best model by the " +
                  std::string(best.greater_is_better ? "greatest " : "smallest ") + best.metric +
                  " so far; a resumed run must keep train.metric_for_best_model and "
                  "train.greater_is_better");
}

double metric_of(const MetricsRow& row, const std::string& metric) {
  std::string names;
  for (const auto& [name, value] : row.values) {
    if (name == metric) return std::visit([](auto v) { return static_cast<double>(v); }, value);
    names += (names.empty() ? "" : ", ") + name;
  }
  throw Error(ErrorCode::kInvalidArgument,
              "train.metric_for_best_model: the evaluation has no " + metric + "; it has " + names);
}

bool see_evaluation(const BestModelOptions& options, int64_t step, double value, BestModel& best) {
  best.metric = options.metric;
  best.greater_is_better = options.greater_is_better;
  const bool first = best.step == 0;
  const bool better = options.greater_is_better ? value > best.value : value < best.value;
  if (!std::isfinite(value) || !(first || better)) {
    best.evaluations_since += 1;
    return false;
  }
  best.step = step;
  best.value = value;
  best.evaluations_since = 0;
  return true;
}

bool is_patience_over(const BestModelOptions& options, const BestModel& best) {
  return options.patience > 0 && best.evaluations_since >= options.patience;
}

std::string why_stopped_early(const BestModel& best) {
  std::ostringstream text;
  text << best.metric << " has not improved in " << best.evaluations_since
       << " evaluations (train.early_stopping_patience); ";
  if (best.step == 0)
    text << "none was a finite number";
  else
    text << "the best is " << best.value << ", of step " << best.step;
  return text.str();
}

}  // namespace retort::recipes

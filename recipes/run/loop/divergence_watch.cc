#include "recipes/run/loop/divergence_watch.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

namespace retort::recipes {
namespace {

// A median is high if it exceeds the lowest one by all three of these: a factor, a number of nats,
// and a share of the way back to the first median.
constexpr double kFactor = 1.5, kNats = 1.0, kWayBack = 0.8;
// It is high in any case if it exceeds the loss of the first step by both of these.
constexpr double kFirstFactor = 10, kFirstNats = 5;

double median(const std::deque<double>& values) {
  std::vector<double> sorted(values.begin(), values.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

std::string brief(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

}  // namespace

void DivergenceWatch::Streak::count(bool holds, int64_t step) {
  if (!holds) {
    steps = 0;
    return;
  }
  if (steps == 0) since = step;
  steps += 1;
}

void DivergenceWatch::see_loss(const Step& step) {
  if (!first_loss_) first_loss_ = step.loss;
  losses_.push_back(step.loss);
  if (losses_.size() > kWindow) losses_.pop_front();
  if (losses_.size() < kWindow) return;

  usual_ = median(losses_);
  if (!first_usual_) first_usual_ = lowest_ = usual_;
  lowest_ = std::min(lowest_, usual_);
  const double way_back = lowest_ + kWayBack * (*first_usual_ - lowest_);
  const double above_lowest = std::max({kFactor * lowest_, lowest_ + kNats, way_back});
  const double above_first = std::max(kFirstFactor * *first_loss_, *first_loss_ + kFirstNats);
  bound_ = std::min(above_lowest, above_first);
  high_.count(usual_ > bound_, step.number);
}

// A step at a learning rate of 0 (a warm-up's first, a schedule's last) says nothing of whether the
// run still learns.
void DivergenceWatch::see_gradient(const Step& step) {
  if (step.learning_rate > 0) dead_.count(step.grad_norm < kDead, step.number);
}

std::string DivergenceWatch::see(const Step& step) {
  skipped_.push_back(step.skipped);
  if (skipped_.size() > kWindow) skipped_.pop_front();
  // The loss or the gradient of a skipped step is not finite: there is nothing to compare.
  if (!step.skipped) {
    see_gradient(step);
    if (by_loss_) see_loss(step);
  }

  const std::string window = std::to_string(kWindow);
  if (high_.steps >= kWindow)
    return "the loss has diverged: its median over " + window + " steps has been above " +
           brief(bound_) + " since step " + std::to_string(high_.since) + " (now " + brief(usual_) +
           ", at its lowest " + brief(lowest_) + ")";
  if (dead_.steps >= kWindow)
    return "nothing is learned any more: the gradient has been 0 since step " +
           std::to_string(dead_.since);
  const auto skipped = std::count(skipped_.begin(), skipped_.end(), true);
  if (2 * static_cast<size_t>(skipped) >= kWindow)
    return "loss or gradient are not finite: " + std::to_string(skipped) + " of the last " +
           window + " steps were skipped, as of step " + std::to_string(step.number);
  return "";
}

}  // namespace retort::recipes

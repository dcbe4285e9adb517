// Notices runs that have stopped learning: a loss that has left for good, a gradient that is gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

namespace retort::recipes {

// Watches all steps of a run by three rules. A single spike meets none of them (spike_watch.h has
// those), and each holds for kWindow steps in a row before it is told.
// - Diverged: the median loss of the last kWindow steps is above the lower of two bounds. One is by
//   the lowest such median so far: half as much again, at least a nat above it, and at least four
//   fifths of the way back to the first one. The other is for runs that explode before there is a
//   median: ten times the loss of the first step, and at least five nats above it.
// - Dead: the gradient's norm is below kDead in each step whose learning rate is above 0.
// - Not finite: at least half of the last kWindow steps were skipped (train.skip_nonfinite_steps).
// Where the loss is no measure (Objective::loss_falls) only the last two are applied.
// Threads: one. The numbers are those of all ranks, so that every rank decides alike. It begins
// anew in a resumed run.
class DivergenceWatch {
 public:
  static constexpr size_t kWindow = 20;
  static constexpr double kDead = 1e-12;

  struct Step {
    int64_t number = 0;
    double loss = 0, grad_norm = 0, learning_rate = 0;
    bool skipped = false;  // as its loss or gradient was not finite
  };

  explicit DivergenceWatch(bool by_loss) : by_loss_(by_loss) {}

  // What is wrong after this step, for as long as it is; "": nothing. "the loss has diverged: its
  // median over 20 steps has been above 3.2 since step 120 (now 8.1, at its lowest 2.1)".
  std::string see(const Step& step);

 private:
  void see_loss(const Step& step);
  void see_gradient(const Step& step);

  // The first steps in a row of which a rule holds.
  struct Streak {
    int64_t since = 0;
    size_t steps = 0;
    void count(bool holds, int64_t step);
  };

  const bool by_loss_;
  std::deque<double> losses_;
  std::deque<bool> skipped_;
  std::optional<double> first_loss_, first_usual_;
  double usual_ = 0, lowest_ = 0, bound_ = 0;  // medians, and what they must not be above
  Streak high_, dead_;
};

}  // namespace retort::recipes

// What recipes over packed samples share: a stream of steps, and a loss for each micro-batch.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "recipes/run/loop/objective.h"

namespace retort::recipes {

// Where the batches of a step (counted from 1) come from: a data::BatchStream, or samples that a
// generator just drew.
using StepSource = std::function<data::BatchStream::Step(int64_t step)>;

class BatchObjective : public Objective {
 public:
  explicit BatchObjective(StepSource source) : source_(std::move(source)) {}
  // What a row of metrics says of its step beyond the objective's own: of the samples that its
  // batches were made of. Called on every rank once the step is done; with a lookahead later ones
  // may be drawn by then.
  void also_add(std::function<void(MetricsRow& row)> add) { also_add_ = std::move(add); }
  StepInfo next_step(int64_t step) final;
  std::string origins(size_t index) const final;
  const models::PackedTokens& tokens(size_t index) const final {
    return drawn_.front().micro_batches.at(index).tokens;
  }
  at::Tensor loss_sum(const models::Head& head, const at::Tensor& hidden, size_t index,
                      StepSums& sums) final;
  void finish_step(const StepSums& sums, MetricsRow& row) final;

 protected:
  // A step's batches are known; called in order of steps. Must not wait.
  virtual void announce(int64_t step, const data::BatchStream::Step& batches);
  // `rows` [R, H]: the hidden states of the batch's target positions.
  virtual at::Tensor batch_loss(const models::Head& head, const at::Tensor& rows,
                                const data::MicroBatch& batch, StepSums& sums) = 0;
  virtual void add_metrics(const StepSums& sums, MetricsRow& row) = 0;

 private:
  StepSource source_;
  std::function<void(MetricsRow& row)> also_add_;  // may be empty
  std::deque<data::BatchStream::Step> drawn_;
};

// How many of them were cut at data.max_length.
template <class Samples>
double count_truncated(const Samples& samples) {
  double count = 0;
  for (const auto& sample : samples)
    count += sample.truncated ? 1 : 0;
  return count;
}

// "file:line, file:line, ..." of the first eight.
template <class Samples>
std::string list_origins(const Samples& samples) {
  std::string text;
  for (size_t i = 0; i < samples.size() && i < 8; ++i)
    text += (i ? ", " : "") + samples[i].origin;
  return samples.size() > 8 ? text + ", ..." : text;
}

}  // namespace retort::recipes

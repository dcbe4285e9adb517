// What a recipe adds to the training loop: the batches of a step, and the loss of each micro-batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/decoder/decoder.h"
#include "recipes/data/batches.h"
#include "recipes/run/loop/device_scalars.h"
#include "recipes/run/metrics/metrics_writer.h"

namespace retort::recipes {

// Sums over a step; all-reduced over dp as one fp64 vector. The first are the loop's, `values` are
// named by the objective.
struct StepSums {
  double count = 0;          // what the recipe counts: target tokens; pairs; sampled tokens
  double loss = 0;           // of that many
  double num_tokens = 0;     // all tokens, targets or not
  double num_truncated = 0;  // rows that were cut at data.max_length
  std::vector<double> values;
  // What the losses of a device have yet to add to the others. Empty once the step is computed.
  DeviceScalars late;
};

// A step that was drawn.
struct StepInfo {
  size_t micro_batches = 0;  // the same on every rank
  data::Cursor after;        // to be stored once the step is done
  double epoch = 0;          // fractional, after this step
  // seconds that this rank waited for the rows of data; none of recipes whose steps are made of
  // other things
  std::optional<double> data_wait_time = std::nullopt;
};

// Steps are drawn in order, each once, as far ahead of the one that is computed as lookahead() lets
// them.
// Threads: compute.
class Objective {
 public:
  virtual ~Objective() = default;
  // How many steps before it is computed `step` may be drawn.
  virtual int64_t lookahead(int64_t /*step*/) const { return 0; }
  // Draws the batches of `step` (counted from 1) and asks for what they need from other roles. May
  // wait for what the step itself is made of (samples). The ranks vote afterwards.
  virtual StepInfo next_step(int64_t step) = 0;
  // Where the samples of a micro-batch of the oldest drawn step come from; for messages.
  virtual std::string origins(size_t index) const = 0;
  // How many StepSums::values there are.
  virtual size_t num_values() const = 0;
  // Before the first loss of the oldest drawn step; for sums that the loss must know. A collective
  // over `dp` if it is one.
  virtual void begin_step(parallel::Group& dp);
  // What the student reads in micro-batch `index` of the oldest drawn step: the same on all ranks
  // of one dp rank. Valid until finish_step.
  virtual const models::PackedTokens& tokens(size_t index) const = 0;
  // Sum of the loss over that micro-batch from what the student's decoder gives for tokens(index):
  // its final hidden states, of the wanted rows alone where tokens name them; adds to `sums`, which
  // must stay where they are until sums.late.read(). Called where the pipeline ends, on all its tp
  // ranks, which get equal sums (collectives of the losses on tp). May wait for a remote payload
  // until its deadline.
  virtual at::Tensor loss_sum(const models::Head& head, const at::Tensor& hidden, size_t index,
                              StepSums& sums) = 0;
  // What the step's loss and gradient are divided by, once; from global sums.
  virtual double divisor(const StepSums& sums) const { return sums.count; }
  // Whether learning shows in the loss: it falls, and is no difference around 0 such as a policy
  // gradient's.
  virtual bool loss_falls() const { return true; }
  // The step is done: forgets its batches and adds this recipe's metrics to the row. `sums` are
  // global. Called on every rank.
  virtual void finish_step(const StepSums& sums, MetricsRow& row) = 0;
};

// The evaluation after a step: its row, with "eval_" names. Every rank calls it.
using Evaluator = std::function<MetricsRow(int64_t step)>;

}  // namespace retort::recipes

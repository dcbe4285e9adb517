// What is trained on at once of a rollout, with what the loss needs beside the tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "recipes/data/batches.h"
#include "recipes/data/prompt_dataset.h"
#include "recipes/rollout/sample_source.h"
#include "recipes/run/reference/reference.h"

namespace retort::recipes {

// Samples that the student does not compute, but which count in what loss and gradient are divided
// by.
struct UncomputedSamples {
  int64_t samples = 0;
  int64_t rows = 0;    // tokens of their completions
  int64_t tokens = 0;  // those of their prompts too

  void add(const data::PromptSample& prompt, const RolloutSample& sample);
};

struct GrpoMicroBatch {
  data::MicroBatch batch;  // a sequence for each completion, as the reference is asked
  // The same with what the completions of a prompt begin with computed once; wanted are the rows
  // that predict the batch's targets. On a device, whose kernels know no forks, nothing is shared.
  models::PackedTokens tokens;
  // Of groups whose advantages are all 0, which without `beta` have no gradient, unless
  // sampling_correction measures them.
  UncomputedSamples left_out;
  // Those that were cut off and have no loss for that: as sequences they count where TRL counts
  // them (losses::policy_divisor), their tokens do not.
  UncomputedSamples masked;
  std::vector<int64_t> places;  // of its samples in this rank's rollout
  at::Tensor sequence_of_row, advantages, generator_logps;
  // The student's own, before the first step on the round; undefined: this is it, or the ratio is
  // to generator_logps.
  at::Tensor old_logps;
  // [R] bool, of the step that is computed: the tokens of high entropy; undefined: all
  at::Tensor high_entropy;
  at::Tensor reference_logps;  // once received
  Reference::Pending reference;
};

// One while samples are added to it.
class OpenGrpoMicroBatch {
 public:
  void leave_out(const data::PromptSample& prompt, const RolloutSample& sample) {
    left_out_.add(prompt, sample);
  }
  void mask(const data::PromptSample& prompt, const RolloutSample& sample) {
    masked_.add(prompt, sample);
  }
  // kMismatch for a sample without the generator's log-probabilities.
  void add(const data::PromptSample& prompt, const RolloutSample& sample, float advantage,
           int64_t place);
  // `share`: see GrpoMicroBatch::tokens.
  GrpoMicroBatch close(bool share) &&;

 private:
  std::vector<data::Sample> samples_;
  std::vector<int64_t> sequences_;  // of each target row
  std::vector<float> logps_;        // of each target row, by the generator
  std::vector<float> advantages_;   // of each sample
  std::vector<int64_t> places_;     // of each sample
  UncomputedSamples left_out_, masked_;
};

}  // namespace retort::recipes

// What is trained on at once of a rollout, with what the loss needs beside the tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "recipes/data/batches.h"
#include "recipes/data/prompt_dataset.h"
#include "recipes/rollout/sample_source.h"
#include "recipes/run/reference.h"

namespace retort::recipes {

// Samples of groups whose advantages are all 0, which without `beta` have no gradient: unless
// sampling_correction measures them they are not computed, but counted in what loss and gradient
// are divided by.
struct SamplesWithoutSignal {
  int64_t samples = 0;
  int64_t rows = 0;    // tokens of their completions
  int64_t tokens = 0;  // those of their prompts too
};

struct GrpoMicroBatch {
  data::MicroBatch batch;
  SamplesWithoutSignal left_out;
  at::Tensor sequence_of_row, advantages, generator_logps;
  at::Tensor old_logps;        // of the first iteration; undefined: this is it
  at::Tensor reference_logps;  // once received
  Reference::Pending reference;
};

// One while samples are added to it.
class OpenGrpoMicroBatch {
 public:
  void leave_out(const data::PromptSample& prompt, const RolloutSample& sample);
  // kMismatch for a sample without the generator's log-probabilities.
  void add(const data::PromptSample& prompt, const RolloutSample& sample, float advantage);
  GrpoMicroBatch close() &&;

 private:
  std::vector<data::Sample> samples_;
  std::vector<int64_t> sequences_;  // of each target row
  std::vector<float> logps_;        // of each target row, by the generator
  std::vector<float> advantages_;   // of each sample
  SamplesWithoutSignal left_out_;
};

}  // namespace retort::recipes

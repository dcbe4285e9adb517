// A recipe's `generation:` block (how samples are drawn) and `weight_sync:` block (how the
// generator follows the student).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/options.h"
#include "base/units.h"
#include "models/generation/request.h"

namespace retort::models {
struct EngineOptions;
}

namespace retort::recipes {

struct GenerationOptions {
  std::string role = "generator";
  int64_t num_generations = 8;
  int64_t max_new_tokens = 256;
  int64_t min_new_tokens = 0;
  models::SamplingOptions sampling;  // its fields are keys of this block; the run sets the rest
  std::vector<std::string> stop;
  ByteSize kv_cache{int64_t{1} << 30};
  int64_t max_tokens_per_step = 2048;
  int64_t max_sequences = 64;
  Duration timeout{600'000};
  bool save_samples = false;
  int64_t eval_num_generations = 1;
  double eval_pass_reward = 1.0;

  template <class V>
  void fields(V& visit) {
    visit("role", role, "the role that generates; its model must have the student's shape");
    visit("num_generations", num_generations, "samples of each prompt");
    visit("max_new_tokens", max_new_tokens, "longest completion; with environment: longest turn");
    visit("min_new_tokens", min_new_tokens,
          "tokens before which no end token is drawn and no stop text ends; 0: off");
    sampling.fields(visit);
    visit("stop", stop, "texts that end a completion");
    visit("kv_cache", kv_cache, "memory of a generator's key-value cache");
    visit("max_tokens_per_step", max_tokens_per_step, "tokens of one forward pass of a generator");
    visit("max_sequences", max_sequences, "completions that a generator works on at once");
    visit("timeout", timeout,
          "a request whose samples take longer is an error; with environment the default is longer "
          "by three times episode_timeout, as often as a round fills the environment");
    visit("save_samples", save_samples,
          "write every sample with its rewards to samples/step-<step>-rank-<rank>.jsonl of the "
          "run's folder");
    visit("eval_num_generations", eval_num_generations,
          "completions of each prompt of data.eval; 1: greedy; above: drawn as in training, for "
          "eval_pass@k");
    visit("eval_pass_reward", eval_pass_reward,
          "a completion passes an evaluation with at least this reward");
  }
  // kInvalidArgument naming the field: ranges.
  void validate() const;
  // True if tokens are drawn from the whole vocabulary at the temperature alone, the first ones
  // too.
  bool whole_distribution() const;
  // The options as the engine wants them; its validate() is part of ours.
  models::EngineOptions engine() const;
};

// Samples in work are finished or given up when new weights arrive.
enum class InFlight { kFinish, kAbort };

struct WeightSyncOptions {
  int64_t every_steps = 1;
  ByteSize bucket_bytes{int64_t{64} << 20};
  InFlight in_flight = InFlight::kFinish;

  template <class V>
  void fields(V& visit) {
    visit("every_steps", every_steps, "optimizer steps between pushes of the student's weights");
    visit("bucket_bytes", bucket_bytes, "weights in one message");
    visit("in_flight", in_flight,
          "samples in work when weights arrive: finished with the old ones, or drawn anew with the "
          "new");
  }
  void validate() const;
};

}  // namespace retort::recipes

template <>
struct retort::EnumNames<retort::recipes::InFlight> {
  using E = retort::recipes::InFlight;
  static constexpr std::array<std::pair<std::string_view, E>, 2> values{
      {{"finish", E::kFinish}, {"abort", E::kAbort}}};
};

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
  double temperature = 1.0;
  double top_p = 1.0;
  int64_t top_k = 0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  std::vector<std::string> stop;
  ByteSize kv_cache{int64_t{1} << 30};
  int64_t max_tokens_per_step = 2048;
  int64_t max_sequences = 64;
  Duration timeout{600'000};
  bool save_samples = false;

  template <class V>
  void fields(V& visit) {
    visit("role", role, "the role that generates; its model must have the student's shape");
    visit("num_generations", num_generations, "samples of each prompt");
    visit("max_new_tokens", max_new_tokens, "longest completion");
    visit("temperature", temperature, "divides the logits before a token is drawn");
    visit("top_p", top_p,
          "draw from the smallest set of most probable tokens with this mass; 1: all");
    visit("top_k", top_k, "draw from this many most probable tokens; 0: all");
    visit(
        "min_p", min_p,
        "draw from tokens with at least this share of the most probable one's probability; 0: all");
    visit("repetition_penalty", repetition_penalty,
          "divides positive and multiplies negative logits of tokens seen; 1: off");
    visit("stop", stop, "texts that end a completion");
    visit("kv_cache", kv_cache, "memory of a generator's key-value cache");
    visit("max_tokens_per_step", max_tokens_per_step, "tokens of one forward pass of a generator");
    visit("max_sequences", max_sequences, "completions that a generator works on at once");
    visit("timeout", timeout, "samples that take longer are an error");
    visit("save_samples", save_samples,
          "write every sample with its rewards to samples/step-<step>-rank-<rank>.jsonl of the "
          "run's folder");
  }
  // kInvalidArgument naming the field: ranges.
  void validate() const;
  // Whether tokens are drawn from the whole vocabulary at the temperature alone.
  bool whole_distribution() const;
  // As the engine wants them; their validate() is part of ours.
  models::SamplingOptions sampling(uint64_t seed) const;
  models::EngineOptions engine() const;
};

// What becomes of samples in work when new weights arrive.
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

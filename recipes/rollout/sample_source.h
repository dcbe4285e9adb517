// Where samples come from: the seam between a recipe and its generators.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "models/decoder/decoder.h"
#include "recipes/data/sample.h"
#include "recipes/rollout/rollout.h"
#include "roles/generator/client.h"

namespace retort::recipes {

// Gets each sample of a request once, as soon as it is there, in whatever order: its place in the
// request's sample_ids, and what was drawn. Any thread; must not block, nor throw.
using SampleSink = std::function<void(size_t place, const models::Completion& completion)>;

// Completions that a dp rank asks for, of its own prompts.
struct RolloutRequest {
  int64_t step = 0;
  uint64_t number = 0;  // unique among the requests of this rank that are on their way
  std::vector<data::PromptSample> prompts;
  int64_t num_generations = 1;       // completions of each prompt
  std::vector<uint64_t> sample_ids;  // one for each completion, prompt by prompt
  bool greedy = false;               // at temperature 0, for evaluation
  // May be empty. Called by the rank that asks, on its compute thread, whenever the samples are
  // asked for: again when they are drawn anew with other weights. Then only the last sink counts.
  std::function<SampleSink()> open_sink;
};

// A request on its way; give it back to the SampleSource that began it.
struct PendingRollout {
  RolloutRequest request;
  uint64_t weight_version = 0;               // that its samples are drawn with
  std::vector<roles::PendingSamples> parts;  // RolloutWorker's, on the rank that asks
  // May be empty. Called by the rank that asks, on its compute thread, now and then while finish()
  // waits; what it throws, finish() throws.
  std::function<void()> meanwhile;
};

// RolloutWorker asks generators; a test may answer by itself. Weight versions count optimizer
// steps: version v is the student after v - 1 steps. Threads: compute. Collectives: those of the
// implementation; every rank must call begin, finish and sync in the same order.
class SampleSource {
 public:
  virtual ~SampleSource() = default;

  // Sends a request for samples of the weights pushed last; returns at once.
  virtual PendingRollout begin(RolloutRequest request) = 0;
  // Waits for the samples; all of them went to the request's sink before it returns.
  virtual Rollout finish(PendingRollout pending) = 0;
  // Pushes the student's weights as `version` unless that version was pushed. Every rank calls it,
  // with its requests that are still on their way: they keep their weights.
  virtual void sync(const models::Decoder& student, uint64_t version,
                    const std::vector<PendingRollout*>& in_flight) = 0;

  virtual uint64_t pushed_version() const = 0;  // 0: none
  // How long the transfer of the weights pushed last took, where this rank knows it; else 0.
  virtual double last_push_seconds() const = 0;
};

}  // namespace retort::recipes

// The own engine and the weights of a generator's replica, on all its ranks at once.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "models/decoder/decoder.h"
#include "models/generation/engine.h"
#include "models/text/tokenizer.h"
#include "roles/generator/methods.h"
#include "roles/generator/sample_backend.h"
#include "roles/generator/weight_staging.h"

namespace retort::roles {

// A replica has one rank, or the tp ranks of its decoder's placement. What its first rank calls
// here, every rank does: the call is broadcast on tp, and then all do the same in lock-step, on
// engines that see the same bits. So the weights of all ranks change between the same two steps.
//
// Collectives: on tp one broadcast for each call but finished() and stage() (two with a request or
//   a commit in it), then those of the engine's steps and of scoring; of check() a vote and an
//   all-gather. With one rank none.
// Threads: compute; stage() on another one (WeightStaging).
class ReplicaEngine : public SampleBackend {
 public:
  // options.merge_requests is set in any case. `base_weights`: GeneratorInfo's.
  ReplicaEngine(models::Decoder decoder, models::Tokenizer tokenizer, models::EngineOptions options,
                std::string base_weights = {});

  GeneratorInfo info() const override;
  uint64_t weight_version() const override { return staging_.in_use(); }

  uint64_t submit(const GenerateRequest& request) override;  // Engine::submit
  bool step() override;                                      // one forward pass
  std::vector<FinishedSample> finished() override;
  void cancel(uint64_t request) override;
  // models::score, of the decoder: it computes with an adapter beside its weights, where a step has
  // weights that it was added to, so that in dtypes of 2 bytes the two round in different places.
  std::vector<std::vector<float>> score(const ForwardRequest& request) override;

  void stage(WeightBucket bucket, const std::string& from) override;
  std::optional<WeightBucket> staged_bucket(uint64_t version, int64_t sender,
                                            int64_t index) const override {
    return staging_.find(version, sender, index);
  }
  bool has_staged() const override { return !staging_.empty(); }
  void forget_staged(const std::function<std::set<std::string>()>& connected) override;
  // WeightStaging::check on every rank; the error of the first rank that has one.
  uint64_t check(const CommitWeights& commit) override;
  void apply() override;
  void uncheck() override;

  bool leads() const override { return decoder_.placement().tp_rank() == 0; }
  void idle() override;
  void stop() override;
  // Errors that the first rank answers to its caller are dropped.
  bool follow() override;

 private:
  enum class Call : int64_t {
    kIdle,
    kStop,
    kSubmit,
    kStep,
    kCancel,
    kScore,
    kCheck,
    kApply,
    kUncheck
  };
  int64_t num_ranks() const { return decoder_.placement().tp_size(); }
  void announce(Call call, uint64_t number = 0, const std::string& bytes = {});
  void run(Call call, uint64_t number, const std::string& bytes);
  uint64_t submit_here(const GenerateRequest& request);
  void step_here();
  void cancel_here(uint64_t request);
  std::vector<std::vector<float>> score_here(const ForwardRequest& request) const;
  uint64_t check_here(const CommitWeights& commit);
  void apply_here();

  models::Decoder decoder_;
  models::Tokenizer tokenizer_;
  const std::string base_weights_;
  models::Engine engine_;
  std::set<uint64_t> in_flight_;          // requests that the engine has
  std::vector<FinishedSample> finished_;  // on the first rank, since the last finished()
  WeightStaging staging_;
};

}  // namespace retort::roles

// The engine and the weights of a generator's replica, on all its ranks at once.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "models/decoder.h"
#include "models/generation/engine.h"
#include "models/text/tokenizer.h"
#include "roles/generator/methods.h"
#include "roles/generator/weight_staging.h"

namespace retort::roles {

// A replica has one rank, or the tp ranks of its decoder's placement. Its first rank decides and
// answers; what it calls here, every rank does: the call is broadcast on tp, and then all do the
// same in lock-step, on engines that see the same bits. So the weights of all ranks change between
// the same two steps. Weights arrive at each rank by itself (stage). Threads: compute. Collectives:
// on tp one broadcast for each call (two with a request or a commit in it), then those of the
// engine's steps and of scoring; of check() a vote and an all-gather. With one rank none.
class ReplicaEngine {
 public:
  ReplicaEngine(models::Decoder decoder, const models::Tokenizer& tokenizer,
                models::EngineOptions options);
  ReplicaEngine(const ReplicaEngine&) = delete;

  bool leads() const { return decoder_.placement().tp_rank() == 0; }
  int64_t num_ranks() const { return decoder_.placement().tp_size(); }
  const models::Decoder& decoder() const { return decoder_; }
  uint64_t weight_version() const { return version_; }

  // On the first rank.
  uint64_t submit(const GenerateRequest& request);  // Engine::submit
  void step();
  bool finished(uint64_t id) const { return engine_.finished(id); }
  std::vector<models::Completion> take(uint64_t id);
  void give_up(uint64_t id);  // cancel, and what was drawn is forgotten
  // Log-probabilities of the tokens after the first of each row: models::score.
  std::vector<std::vector<float>> score(const ForwardRequest& request);
  // WeightStaging::check on every rank; the error of the first rank that has one. Returns the
  // replica's checksum. From then on no rank takes buckets until apply() made the weights those in
  // use, or uncheck() said that they are not committed after all; then they stay staged.
  uint64_t check(const CommitWeights& commit);
  void apply();
  void uncheck();
  // Tells the other ranks that there is nothing to do, so that they do not wait for longer than the
  // group's timeout; that it is over.
  void idle();
  void stop();

  // On the other ranks: takes part in one call. False after stop(). Errors that the first rank
  // answers to its caller are dropped.
  bool follow();

  // On every rank, for what arrived at it: takes a bucket of the peer `from`. kUnavailable while a
  // checked commit waits; WeightStaging::add.
  void stage(WeightBucket bucket, const std::string& from);
  bool has_staged() const { return !staging_.empty(); }
  // The version of the commit that waits, or 0.
  uint64_t committed_version() const { return checked_; }
  // Throws away what is staged and not checked of peers that are not `connected`.
  void forget_staged(const std::set<std::string>& connected);

 private:
  enum class Call : int64_t {
    kIdle,
    kStop,
    kSubmit,
    kStep,
    kTake,
    kGiveUp,
    kScore,
    kCheck,
    kApply,
    kUncheck
  };
  void announce(Call call, uint64_t number = 0, const std::string& bytes = {});
  void run(Call call, uint64_t number, const std::string& bytes);
  uint64_t submit_here(const GenerateRequest& request);
  std::vector<std::vector<float>> score_here(const ForwardRequest& request) const;
  uint64_t check_here(const CommitWeights& commit);
  void apply_here();

  models::Decoder decoder_;
  models::Engine engine_;
  WeightStaging staging_;
  uint64_t version_ = 0, checked_ = 0;  // in use; of the commit that waits, or 0
};

}  // namespace retort::roles

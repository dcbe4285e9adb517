// Samples that generators in other processes draw.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/error.h"
#include "models/generation/stop_text.h"
#include "models/text/tokenizer.h"
#include "parallel/world.h"
#include "recipes/document/generation_options.h"
#include "recipes/rollout/sample_source.h"
#include "roles/generator/client.h"

namespace retort::recipes {

// The student's hands on its generators. The ranks of one dp rank (the world's mp group) work on
// the same samples: the first of them asks for them, the others get what it got. Threads: compute.
// Collectives: as stated.
class RolloutWorker : public SampleSource {
 public:
  struct Options {
    GenerationOptions generation;
    WeightSyncOptions sync;
    uint64_t seed = 0;
    std::vector<int64_t> eos_token_ids;
    models::StopRule stops;  // generation.stop
    bool episodes = false;   // every completion is an episode with the recipe's environment
  };
  // `client`: null where needs_client() is false.
  RolloutWorker(parallel::World& world, std::unique_ptr<roles::GeneratorClient> client,
                models::Tokenizer tokenizer, Options options);
  // Whether a rank speaks to the generators: to ask for samples, or to send its part of the
  // weights.
  static bool needs_client(parallel::World& world) {
    return world.mp().rank() == 0 || world.coordinate().dp == 0;
  }

  PendingRollout begin(RolloutRequest request) override;
  // A request that a push ended (in_flight: abort) is sent again with the weights of now. A vote
  // and two broadcasts on mp.
  Rollout finish(PendingRollout pending) override;
  // The ranks of the first dp rank send what they count. Votes twice on the world; one all-gather
  // of the receipts on the first dp rank's mp.
  void sync(const models::Decoder& student, uint64_t version,
            const std::vector<PendingRollout*>& in_flight) override;
  uint64_t pushed_version() const override { return pushed_; }
  double last_push_seconds() const override { return push_seconds_; }

 private:
  void send(PendingRollout& pending, uint64_t number);
  std::vector<roles::Samples> receive(PendingRollout& pending, double* waited);
  void draw_again(PendingRollout& pending, const Error& why);
  void wait_synced();
  bool leads() const { return world_.mp().rank() == 0; }

  parallel::World& world_;
  std::unique_ptr<roles::GeneratorClient> client_;
  models::Tokenizer tokenizer_;
  Options options_;
  uint64_t pushed_ = 0;
  double push_seconds_ = 0;
  std::optional<roles::PendingPush> push_;
  uint64_t resent_ = 0;
};

}  // namespace retort::recipes

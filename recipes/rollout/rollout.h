// Samples for a training step: prompts go to a generator, what comes back is scored; and the
// generator follows the student.
//
// On each dp rank of the student, in the order of a step:
//
//   prompts --> begin() --- generator.submit ----> queue --> engine, with weights of version v
//               finish() <-- generator.collect --- tokens, log-probabilities, finish reasons
//               score() --> rewards: rules here, a program, a service
//                  |
//                  v
//               objective: advantages or kept samples, and the loss --> trainer: version v + 1
//                  |
//                  v
//               sync() ---- weights.bucket ------> beside the weights in use
//                      ---- weights.commit ------> in their place, between two requests
//
// Who waits for whom, at which bound:
//
//   who waits            for what                           at most
//   -------------------  ---------------------------------  --------------------------------------
//   begin()              room in rpc.max_inflight_bytes     rpc.timeout
//   finish()             its samples                        generation.timeout from acceptance
//   score()              a program or a service             rewards.timeout for each batch
//   sync(), first of mp  its requests to be queued          rpc.timeout
//   sync(), rank 0       the last version to be in use      generation.timeout from its commit
//   sync(), senders      buckets to arrive                  rpc.timeout; 8 a replica on their way
//   the other ranks      the ranks above, at a vote         the world's timeout: student_timeout()
//                                                           in recipes/run/student_options.h
//   a queued request     the version that it names          generation.timeout of its caller
//   a commit             older requests to be done          generation.timeout of its caller;
//                                                           nothing with in_flight: abort
//   a generator          nobody: the next request after 256 that are not collected is refused
//   grpo's next rounds   the round that is trained on       (max_staleness - (every_steps - 1)) /
//                                                           num_iterations rounds ahead, none of
//                                                           them past a step that saves
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/generation/request.h"
#include "models/text/tokenizer.h"
#include "parallel/world.h"
#include "recipes/data/sample.h"
#include "recipes/rewards/reward.h"
#include "recipes/rollout/options.h"
#include "roles/generator/client.h"

namespace retort::recipes {

struct RolloutSample {
  models::Completion completion;
  uint64_t sample_id = 0;
  uint64_t weight_version = 0;
  std::string text;              // without special tokens
  std::optional<double> reward;  // nullopt: unscorable, or not scored
  std::vector<std::optional<double>> components;
};
struct RolloutGroup {
  data::PromptSample prompt;
  std::vector<RolloutSample> samples;
};
struct Rollout {
  std::vector<RolloutGroup> groups;  // of this rank, in order
  uint64_t weight_version = 0;
  double generation_seconds = 0;  // of the slowest generator
  double wait_seconds = 0;        // that this rank waited
};

// The student's hands on its generators. Weight versions count optimizer steps: version v is the
// student after v - 1 steps. The ranks of one dp rank (the world's mp group) work on the same
// samples: the first of them asks for them and scores them, the others get what it got. Threads:
// compute. Collectives: as stated; every rank must call begin, finish, score and sync in the same
// order.
class RolloutWorker {
 public:
  struct Options {
    GenerationOptions generation;
    WeightSyncOptions sync;
    uint64_t seed = 0;
    std::vector<int64_t> eos_token_ids;
    std::filesystem::path run_folder;  // for save_samples
  };
  // `client`: null where needs_client() is false.
  RolloutWorker(parallel::World& world, std::unique_ptr<roles::GeneratorClient> client,
                models::Tokenizer tokenizer, Options options);
  // Whether a rank speaks to the generators: to ask for samples, or to send its part of the
  // weights.
  static bool needs_client(parallel::World& world) {
    return world.mp().rank() == 0 || world.coordinate().dp == 0;
  }

  // Requests of one step on their way.
  struct Pending {
    std::vector<data::PromptSample> prompts;  // of this dp rank
    int64_t num_generations = 1;
    std::vector<uint64_t> sample_ids;
    uint64_t weight_version = 0;
    int64_t step = 0;
    std::vector<roles::PendingSamples> parts;
    bool greedy = false;
  };
  // Sends `prompts` (this dp rank's) with the weights pushed last; returns at once. `sample_ids`:
  // one for each completion. `request`: unique among the requests of this rank that are on their
  // way. `greedy`: one completion each at temperature 0, for evaluation.
  Pending begin(int64_t step, uint64_t request, std::vector<data::PromptSample> prompts,
                std::vector<uint64_t> sample_ids, bool greedy = false);
  // Waits for the samples. A request that a push ended (in_flight: abort) is sent again with the
  // weights of now. A vote and two broadcasts on mp.
  Rollout finish(Pending pending);
  // Scores every sample. A vote and one broadcast on mp.
  void score(Rollout& rollout, rewards::RewardSet& rewards) const;
  // With save_samples: the first rank of mp writes them.
  void save(const Rollout& rollout, int64_t step,
            const std::vector<std::string>& reward_names) const;

  // Pushes the student's weights as `version` unless that version was pushed. Every rank calls it,
  // with its requests that are still on their way: they keep their weights. The ranks of the first
  // dp rank send what they count. Votes twice; one all-gather of the receipts on the first dp
  // rank's mp.
  void sync(const models::Decoder& student, uint64_t version, std::vector<Pending*> in_flight);
  uint64_t pushed_version() const { return pushed_; }
  // Until the weights pushed last are in use everywhere.
  void wait_synced();
  double last_push_seconds() const { return push_seconds_; }
  const Options& options() const { return options_; }

 private:
  void send(Pending& pending, uint64_t request);
  std::vector<roles::Samples> receive(Pending& pending, double* waited);
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

// One JSON object for each sample: prompt, completion, token_ids, logps, sampling_logps, reward,
// rewards (by `names`; null: unscorable), finish_reason, sample_id, weight_version, origin. Written
// atomically; kResourceExhausted when the disk is full.
void write_samples(const std::filesystem::path& file, const Rollout& rollout,
                   const std::vector<std::string>& names);

// Prompt and completion as one sample whose targets are the completion's tokens.
data::Sample to_sample(const data::PromptSample& prompt, const std::vector<int32_t>& completion);

}  // namespace retort::recipes

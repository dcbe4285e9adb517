// A generator whose samples an engine of others draws.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/units.h"
#include "engines/contract/contract.h"
#include "engines/contract/engine.h"
#include "engines/weights/receipt.h"
#include "engines/weights/weight_files.h"
#include "models/decoder/decoder.h"
#include "models/text/tokenizer.h"
#include "roles/generator/sample_backend.h"
#include "roles/generator/weight_staging.h"

namespace retort::engines {

// Speaks for the engine to a roles::Generator: a draw of the engine's for each completion, all of
// them at once as far as the engine's max_inflight goes.
//
// Weights: they arrive in the student's decoder, as at a generator of ours. apply() writes them
//   where the engine reads them, makes it load them, and asks it for the log-probabilities of
//   canary sequences: a version counts only when those are the decoder's own (receipt.h).
// Log-probabilities: those that follow from what the engine's mean; a completion has the others
//   empty. At temperature 1 from the whole distribution that is both.
// Bits: the engine's. The seed of a draw is a function of the request's seed, the sample id and how
//   much of the sample was drawn before, so that an engine which honours seeds draws the same
//   again, as far as its arithmetic repeats, and no two turns of a sample share noise.
// Errors: a draw that broke on its way is drawn once more; an engine that is not there then, or
//   that does not take weights over, ends the backend (step and apply throw): the process begins
//   anew and waits for the engine. An answer that cannot be ends its request.
// Memory: the decoder, while weights arrive once more of it.
// Threads: compute, stage() on another one; the engine's thread brings draws.
class EngineBackend final : public roles::SampleBackend {
 public:
  struct Options {
    Duration timeout{600'000};         // of one draw, beside the time of those before it
    Duration load_timeout{1'800'000};  // for it to load weights
    CanaryOptions canaries;
    DrawnMeaning drawn = DrawnMeaning::kRaw;  // of the engine's log-probabilities
    // Makes the engine use the weights of a path, by a deadline. Empty: Engine::load_weights.
    std::function<void(const std::string& path, Deadline deadline)> load;
    // Hears of every receipt, accepted or not, before anything follows from it. May be empty.
    std::function<void(const Receipt&)> on_receipt;
  };
  // `student`: the model that is followed, with any weights.
  EngineBackend(std::shared_ptr<Engine> engine, models::Decoder student,
                models::Tokenizer tokenizer, WeightFiles files, Options options);
  ~EngineBackend() override;

  roles::GeneratorInfo info() const override;
  uint64_t weight_version() const override { return staging_.in_use(); }

  uint64_t submit(const roles::GenerateRequest& request) override;
  // Waits for a draw to end, for kStepWait at the most.
  bool step() override;
  std::vector<roles::FinishedSample> finished() override;
  void cancel(uint64_t request) override;
  std::vector<std::vector<float>> score(const roles::ForwardRequest& request) override;

  void stage(roles::WeightBucket bucket, const std::string& from) override;
  std::optional<roles::WeightBucket> staged_bucket(uint64_t version, int64_t sender,
                                                   int64_t index) const override {
    return staging_.find(version, sender, index);
  }
  bool has_staged() const override { return !staging_.empty(); }
  void forget_staged(const std::function<std::set<std::string>()>& connected) override;
  uint64_t check(const roles::CommitWeights& commit) override;
  void apply() override;
  void uncheck() override;

 private:
  // The engine's thread brings these; the inbox outlives the backend while a draw is open.
  struct Ended {
    uint64_t request = 0;
    int64_t index = 0;
    Outcome<Drawn> outcome;
  };
  struct Inbox {
    std::mutex mutex;
    std::condition_variable arrived;
    std::vector<Ended> ended;
  };
  struct Open {
    DrawRequest draw;
    bool again = false;  // it broke once
    std::function<void()> cancel;
  };
  using Place = std::pair<uint64_t, int64_t>;  // request, index

  void begin(const Place& place, Open open);
  void take(Ended ended);
  void give_up(uint64_t request);

  std::shared_ptr<Engine> engine_;
  models::Decoder decoder_;
  models::Tokenizer tokenizer_;
  WeightFiles files_;
  Options options_;
  roles::WeightStaging staging_;
  std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  std::map<Place, Open> open_;
  std::vector<roles::FinishedSample> finished_;
  uint64_t last_request_ = 0;
};

}  // namespace retort::engines

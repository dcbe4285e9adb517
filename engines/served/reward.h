// A role that scores completions, whose numbers an engine of others computes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/units.h"
#include "engines/contract/engine.h"
#include "engines/served/question_packs.h"
#include "models/config/config.h"
#include "models/text/tokenizer.h"
#include "roles/reward/methods.h"
#include "roles/served_role.h"
#include "roles/teacher/methods.h"
#include "rpc/agent.h"

namespace retort::engines {

// Answers teacher.info and reward.score: one question to the engine for each sequence, all of them
// at once as far as the engine's max_inflight goes.
//
// Use: as every ServedRole.
// Errors: an answer that cannot be fails its request. An engine that is not there any more ends the
//   role: whoever waits gets kPeerLost and asks another replica, work() throws, the process begins
//   anew and waits for the engine.
// Threads: compute; answers are formed on the engine's thread.
class EngineReward final : public roles::ServedRole {
 public:
  struct Options {
    std::string name;               // "scorer/0"
    Duration timeout{600'000};      // of one question, beside the time of those before it
    models::ModelConfig config;     // of the model that is served
    roles::ProbeNumbers numbers{};  // those of its replicas must be the same
  };
  EngineReward(std::shared_ptr<Engine> engine, models::Tokenizer tokenizer, Options options);

  void serve(rpc::Agent& agent, std::shared_ptr<rpc::HandlerQueue> queue) override;
  // Cancels what is asked for callers that are gone. Throws what ended the engine; else there is
  // nothing to do: false.
  bool work() override;
  // Whoever asks later hears that nothing comes, too.
  void stop() override;

  roles::TeacherInfo info(const roles::InfoRequest& request) const;
  Future<roles::RewardAnswer> score(const roles::RewardQuestion& question,
                                    const rpc::CallContext& caller);
  int64_t completions_scored() const { return packs_.answered(); }
  roles::Progress progress() const override { return {completions_scored(), "completions scored"}; }

 private:
  std::shared_ptr<Engine> engine_;
  models::Tokenizer tokenizer_;
  Options options_;
  QuestionPacks<double> packs_;
};

}  // namespace retort::engines

// A role that says what it thinks of completions, in words that an engine of others writes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/units.h"
#include "engines/contract/engine.h"
#include "engines/served/question_packs.h"
#include "roles/reward/methods.h"
#include "roles/served_role.h"
#include "roles/teacher/methods.h"
#include "rpc/agent.h"

namespace retort::engines {

// Answers teacher.info and judge.answer: one question to the engine for each text, all of them at
// once as far as the engine's max_inflight goes.
//
// Use: as every ServedRole.
// Errors, threads: as QuestionPacks.
class EngineJudge final : public roles::ServedRole {
 public:
  struct Options {
    std::string name;           // "judge/0"
    Duration timeout{600'000};  // of one question, beside the time of those before it
    std::string served_model;   // and who answers: a replica, or one that was started again, must
                                // have the same
  };
  EngineJudge(std::shared_ptr<Engine> engine, Options options);

  void serve(rpc::Agent& agent, std::shared_ptr<rpc::HandlerQueue> queue) override;
  // Cancels what is asked for callers that are gone. Throws what ended the engine; else there is
  // nothing to do: false.
  bool work() override;
  // Whoever asks later hears that nothing comes, too.
  void stop() override;

  roles::TeacherInfo info() const;
  // A question that the server refuses has an answer without words that is cut; the first one is
  // logged.
  Future<roles::JudgeAnswer> answer(const roles::JudgeQuestion& question,
                                    const rpc::CallContext& caller);
  int64_t texts_answered() const { return packs_.answered(); }
  roles::Progress progress() const override { return {texts_answered(), "completions judged"}; }

 private:
  std::shared_ptr<Engine> engine_;
  Options options_;
  QuestionPacks<Written> packs_;
  std::shared_ptr<std::atomic<int64_t>> refused_ = std::make_shared<std::atomic<int64_t>>(0);
};

}  // namespace retort::engines

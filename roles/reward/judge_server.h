// A role that says what it thinks of completions, with a language model of ours.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/decoder/decoder.h"
#include "models/generation/engine.h"
#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"
#include "roles/reward/methods.h"
#include "roles/served_role.h"
#include "roles/teacher/methods.h"
#include "rpc/agent.h"

namespace retort::roles {

// Answers teacher.info and judge.answer: a question is what a user says to the model, through its
// chat template where it has one, and the answer its most probable tokens. All questions that wait
// are answered together; none changes the bits of another's answer.
//
// Use: as every ServedRole.
// Errors: a question that leaves no room for its answer in the model's positions has no words and
//   is cut; the first is logged. Of an engine that fails the process ends, and begins anew.
// Threads: compute.
class JudgeServer final : public ServedRole {
 public:
  struct Options {
    std::string name;              // "judge/0"
    std::filesystem::path folder;  // where the model was loaded from
    models::EngineOptions engine;
    // of the model, the whole of which this process has
    std::vector<int64_t> end_token_ids;
  };
  JudgeServer(models::Decoder decoder, models::Tokenizer tokenizer, models::ChatTemplate chat,
              Options options);

  void serve(rpc::Agent& agent, std::shared_ptr<rpc::HandlerQueue> queue) override;
  // One forward pass for what waits.
  bool work() override;
  void stop() override;

  TeacherInfo info() const;
  Future<JudgeAnswer> answer(const JudgeQuestion& question, const rpc::CallContext& caller);
  int64_t texts_answered() const { return answered_; }
  Progress progress() const override { return {answered_, "completions judged"}; }
  std::string summary() const override { return std::to_string(answered_) + " completions judged"; }

 private:
  struct Asked {
    JudgeAnswer answer;          // so far: without what the engine works on
    std::vector<size_t> places;  // of that, among the texts
    Promise<JudgeAnswer> promise;
  };
  std::vector<int32_t> prompt_of(const std::string& text) const;
  void finish(Asked& asked, std::vector<models::Completion> completions);

  models::Decoder decoder_;
  models::Tokenizer tokenizer_;
  models::ChatTemplate chat_;
  Options options_;
  models::Engine engine_;
  std::map<uint64_t, Asked> asked_;  // by the engine's number
  int64_t answered_ = 0, refused_ = 0;
};

}  // namespace retort::roles

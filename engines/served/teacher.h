// A teacher or reference whose answers an engine of others computes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/units.h"
#include "engines/contract/engine.h"
#include "engines/served/question_packs.h"
#include "models/config/config.h"
#include "models/text/tokenizer.h"
#include "roles/payload/payload.h"
#include "roles/served_role.h"
#include "roles/teacher/answer_store.h"
#include "roles/teacher/methods.h"
#include "roles/teacher/request_queue.h"
#include "rpc/agent.h"

namespace retort::engines {

// Answers teacher.info, teacher.head and teacher.forward as roles::Teacher does, by one question to
// the engine for each sequence.
//
//   payload        what the engine is asked        what the student gets
//   target_logps   the given tokens                as they come; temperature 1 alone
//   topk           its K most probable ids         temperature 1: as they come, the tail is
//                                                  1 - their sum; else exact on the K ids, without
//                                                  a tail (tempered_top_k.h)
//   topk of the    log-probabilities at the ids    temperature 1 alone: as they come, the tail is
//   student's ids  that it names                   1 - their sum
//   hidden_states  the final hidden states         as they come; the head is that of the folder
//
// Of ids that the student names the engine is asked when they are there: the request that travels
// ahead of them is answered with nothing, as an engine keeps no hidden states.
// Ids that only the engine's head has (a padded vocabulary) are left out of topk, and their mass is
// taken from the rest; target_logps of such a model are refused.
// Use: as every ServedRole.
// Errors: an answer that cannot be fails its request. What is asked for callers that are gone is
//   cancelled, and asked anew for who wants a part of it later. An engine that is gone ends the
//   teacher: work() throws, the process begins anew and waits for it, and meanwhile other replicas
//   answer.
// Memory: of each open request its answer: R * K * 8 bytes, or R * H * 4.
// Threads: compute; answers are formed on the engine's thread.
class EngineTeacher final : public roles::ServedRole {
 public:
  struct Options {
    std::string name;              // "teacher/0"
    Duration timeout{600'000};     // of one question, beside the time of those before it
    models::ModelConfig config;    // of the model that is served
    std::filesystem::path folder;  // its tokenizer's; with the head's weights for hidden_states
    roles::AnswerStore::Options store{};
    roles::ProbeNumbers numbers{};  // those of its replicas must be the same
  };
  EngineTeacher(std::shared_ptr<Engine> engine, models::Tokenizer tokenizer, Options options);

  void serve(rpc::Agent& agent, std::shared_ptr<rpc::HandlerQueue> queue) override;
  // Asks the engine for what waits; true: there was something. Cancels what nobody waits for any
  // more. Throws what ended the engine.
  bool work() override;
  void stop() override;

  roles::TeacherInfo info(const roles::InfoRequest& request) const;
  roles::HeadReply head(const roles::HeadRequest& request);
  Future<roles::Payload> enqueue(const roles::ForwardRequest& request,
                                 const rpc::CallContext& caller);
  int64_t requests_served() const { return shared_->served; }
  roles::Progress progress() const override { return {requests_served(), "requests answered"}; }

 private:
  // The answer to the question of one sequence; one of the two is filled in.
  struct Answer {
    Scored scored{};
    at::Tensor tensor{};  // hidden states, or log-probabilities at named ids
  };
  // The engine's thread needs this, so it outlives the teacher while a request is open.
  struct Shared {
    Shared(roles::AnswerStore::Options options, int64_t vocab_rows)
        : store(options), vocab_rows(vocab_rows) {}
    void fail(const std::string& key, const std::exception_ptr& error);
    void deliver(const std::string& key, const roles::ForwardRequest& request,
                 const roles::Payload& whole);

    roles::AnswerStore store;
    const int64_t vocab_rows;
    std::atomic<int64_t> served{0};
    std::mutex mutex;  // of what follows
    // of requests that failed: whoever asks for another part of one asks anew
    std::vector<std::string> failed;
  };
  void forget_failed();
  void ask(const std::string& key, roles::ForwardRequest request);
  Future<std::vector<Answer>> ask_each(const std::string& key, const roles::ForwardRequest& request,
                                       std::vector<ScoreRequest> questions);
  static roles::Payload payload_of_answers(const roles::PayloadSpec& spec,
                                           std::vector<Answer> answers, int64_t vocab_rows);

  std::shared_ptr<Engine> engine_;
  models::Tokenizer tokenizer_;
  Options options_;
  roles::RequestQueue requests_;
  QuestionPacks<Answer> packs_;
  std::shared_ptr<Shared> shared_;
  at::Tensor head_;  // once it was asked for
};

}  // namespace retort::engines

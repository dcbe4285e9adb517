#include "roles/reward/judge_server.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"
#include "base/log.h"
#include "roles/reward/checks.h"
#include "roles/teacher/model_files.h"

namespace retort::roles {
namespace {

constexpr uint64_t kJudgeVersion = 1;  // the weights never change

models::EngineOptions for_many(models::EngineOptions options) {
  options.merge_requests = true;
  return options;
}

}  // namespace

JudgeServer::JudgeServer(models::Decoder decoder, models::Tokenizer tokenizer,
                         models::ChatTemplate chat, Options options)
    : decoder_(std::move(decoder)),
      tokenizer_(std::move(tokenizer)),
      chat_(std::move(chat)),
      options_(std::move(options)),
      engine_(decoder_, for_many(options_.engine)) {
  decoder_.set_requires_grad(false);
}

void JudgeServer::serve(rpc::Agent& agent, std::shared_ptr<rpc::HandlerQueue> queue) {
  agent.serve(kTeacherInfo, queue,
              [this](const InfoRequest&, const rpc::CallContext&) { return info(); });
  agent.serve(kJudgeAnswer, queue, [this](const JudgeQuestion& q, const rpc::CallContext& caller) {
    return answer(q, caller);
  });
}

TeacherInfo JudgeServer::info() const {
  return {.name = options_.name,
          .weight_version = kJudgeVersion,
          .vocab_rows = decoder_.config().vocab_size,
          .vocabulary_fingerprint = "",
          .files = stamp_of_model(options_.folder)};
}

std::vector<int32_t> JudgeServer::prompt_of(const std::string& text) const {
  if (chat_.exists()) {
    const std::string said = "[{\"role\": \"user\", \"content\": " + json_quote(text) + "}]";
    return tokenizer_.encode(chat_.render(said, /*add_generation_prompt=*/true).text,
                             /*add_special_tokens=*/false);
  }
  std::vector<int32_t> ids = tokenizer_.encode(text, /*add_special_tokens=*/true);
  // An end token that the tokenizer puts behind every text would end it before the answer.
  if (ids.size() > 1 && ids.back() == tokenizer_.eos_id()) ids.pop_back();
  return ids;
}

Future<JudgeAnswer> JudgeServer::answer(const JudgeQuestion& question,
                                        const rpc::CallContext& caller) {
  check_question(question);
  const size_t count = question.texts.size();
  Asked asked;
  asked.answer = {.request_id = question.request_id,
                  .texts = std::vector<std::string>(count),
                  .cut = std::vector<uint8_t>(count, 1)};
  const models::ModelConfig& config = decoder_.config();
  models::GenerationRequest request;
  // A judge answers greedily, so that no random draw decides a score. Rows of the head that no
  // token has are never drawn.
  request.draw.sampling.temperature = 0;
  request.draw.sampling.num_ids = std::min(config.vocab_size, tokenizer_.vocab_size());
  request.draw.max_new_tokens = question.max_new_tokens;
  request.draw.eos_token_ids = options_.end_token_ids;

  // A question that leaves no room for an answer stays empty and cut: its completion has no score,
  // and the others have theirs.
  for (size_t i = 0; i < count; ++i) {
    std::vector<int32_t> prompt = prompt_of(question.texts[i]);
    const auto tokens = static_cast<int64_t>(prompt.size()) + question.max_new_tokens;
    if (prompt.empty() || tokens > config.max_position_embeddings) {
      if (refused_++ == 0) {
        RETORT_LOG(kWarning) << "a question of " << prompt.size()
                             << " tokens leaves no room for an answer of "
                             << question.max_new_tokens << " in the model's "
                             << config.max_position_embeddings
                             << " positions; its completion gets no score, and later ones are not "
                                "logged";
      }
      continue;
    }
    request.prompts.push_back(std::move(prompt));
    asked.places.push_back(i);
  }

  Future<JudgeAnswer> answer = asked.promise.future();
  if (request.prompts.empty()) {
    finish(asked, {});
    return answer;
  }
  // A question that waits for its turn in the engine is no work yet, so it does not count as begun.
  caller.clock->wait();
  const uint64_t number = engine_.submit(std::move(request));
  asked_.emplace(number, std::move(asked));
  return answer;
}

void JudgeServer::finish(Asked& asked, std::vector<models::Completion> completions) {
  for (size_t i = 0; i < completions.size(); ++i) {
    std::vector<int32_t>& ids = completions[i].token_ids;
    const bool ended = completions[i].finish_reason == models::FinishReason::kEos;
    if (ended) ids.pop_back();
    asked.answer.texts[asked.places[i]] = tokenizer_.decode(ids, /*skip_special_tokens=*/true);
    asked.answer.cut[asked.places[i]] = ended ? 0 : 1;
  }
  answered_ += static_cast<int64_t>(asked.answer.texts.size());
  asked.promise.set_value(std::move(asked.answer));
}

bool JudgeServer::work() {
  if (engine_.idle()) return false;
  engine_.step();
  for (auto asked = asked_.begin(); asked != asked_.end();) {
    if (!engine_.finished(asked->first)) {
      ++asked;
      continue;
    }
    finish(asked->second, engine_.take(asked->first));
    asked = asked_.erase(asked);
  }
  return !engine_.idle();
}

void JudgeServer::stop() {
  for (auto& [number, asked] : asked_)
    asked.promise.set_error(std::make_exception_ptr(
        Error(ErrorCode::kPeerLost, "the judge stops").with("judge", options_.name)));
  asked_.clear();
}

}  // namespace retort::roles

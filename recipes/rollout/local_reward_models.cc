#include "recipes/rollout/local_reward_models.h"

#include <atomic>
#include <utility>
#include <vector>

#include "base/today.h"
#include "models/checkpoint/checkpoint.h"
#include "models/text/chat_template.h"
#include "models/text/end_tokens.h"
#include "models/text/tokenizer.h"
#include "recipes/rollout/answer_ending.h"
#include "recipes/run/inputs/chat.h"
#include "roles/reward/score_server.h"

namespace retort::recipes {
namespace {

// The caller is this process itself, which waits for the answer and never cancels.
rpc::CallContext local_caller() {
  rpc::CallContext caller;
  caller.peer = "check";
  caller.cancelled = std::make_shared<const std::atomic<bool>>(false);
  return caller;
}

rewards::AskRole score_here(const Recipe& recipe, const rewards::RewardOptions& options) {
  const std::string& folder = recipe.roles.at(*options.role).model;
  const auto server = std::make_shared<roles::ScoreServer>(
      *options.role, models::load_classifier(folder, at::kFloat, {}),
      models::Tokenizer::load(folder), roles::Teacher::Replica{});
  const AnswerEnding ending(load_chat(recipe), models::Tokenizer::load(recipe.student().model),
                            recipe.data.max_length);
  const auto score = [server, ending, label = options.label.value_or(0)](
                         const std::vector<rewards::RewardInput>& inputs) {
    roles::RewardQuestion question{.label = label, .cu_seqlens = {0}};
    for (const rewards::RewardInput& input : inputs) {
      std::vector<int32_t>& ids = question.input_ids;
      const std::vector<int32_t> completion = ending.completion_of(input);
      ids.insert(ids.end(), input.prompt_ids.begin(), input.prompt_ids.end());
      ids.insert(ids.end(), completion.begin(), completion.end());
      question.cu_seqlens.push_back(static_cast<int32_t>(ids.size()));
      question.prompt_tokens.push_back(static_cast<int32_t>(input.prompt_ids.size()));
    }
    Future<roles::RewardAnswer> answer = server->score(question, local_caller());
    // No rank serves here: this thread works until the answer is there.
    while (server->work()) {
    }
    return answer.get().scores;
  };
  return {.score = score, .stop = [] {}};
}

rewards::AskJudge judge_here(const Recipe& recipe, const rewards::RewardOptions& options) {
  const std::string& role = *options.role;
  const std::shared_ptr<roles::JudgeServer> server =
      make_judge(recipe, role, role, models::load_decoder(recipe.roles.at(role).model, at::kFloat));
  const auto answers = [server](std::vector<std::string> questions, int64_t max_new_tokens) {
    Future<roles::JudgeAnswer> answer = server->answer(
        {.max_new_tokens = max_new_tokens, .texts = std::move(questions)}, local_caller());
    while (server->work()) {
    }
    roles::JudgeAnswer all = answer.get();
    std::vector<rewards::Said> said;
    for (size_t i = 0; i < all.texts.size(); ++i)
      said.push_back({.text = std::move(all.texts[i]), .cut = all.cut[i] != 0});
    return said;
  };
  return {.answers = answers, .stop = [] {}};
}

}  // namespace

std::unique_ptr<roles::JudgeServer> make_judge(const Recipe& recipe, const std::string& role,
                                               const std::string& name, models::Decoder decoder) {
  const std::string& folder = recipe.roles.at(role).model;
  models::Tokenizer tokenizer = models::Tokenizer::load(folder);
  std::vector<int64_t> ends = models::end_token_ids(decoder.config(), tokenizer);
  models::ChatTemplate chat = models::ChatTemplate::load(folder);
  if (chat.exists()) chat = chat.with({.day = recipe.data.template_date.value_or(today())});
  return std::make_unique<roles::JudgeServer>(
      std::move(decoder), std::move(tokenizer), std::move(chat),
      roles::JudgeServer::Options{.name = name,
                                  .folder = folder,
                                  .engine = recipe.generation->engine(),
                                  .end_token_ids = std::move(ends)});
}

rewards::ConnectRoles reward_roles_here(const Recipe& recipe) {
  return {.model = [&](const auto& options) { return score_here(recipe, options); },
          .judge = [&](const auto& options) { return judge_here(recipe, options); }};
}

}  // namespace retort::recipes

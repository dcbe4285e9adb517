#include "engines/kserve/requests.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"

namespace retort::engines::kserve {
namespace {

[[noreturn]] void invalid(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, what);
}

void check_ids(const ServedModel& model, const std::vector<int32_t>& ids) {
  if (ids.empty()) invalid("token_ids is empty");
  const auto num_tokens = static_cast<int64_t>(ids.size());
  const EngineState& state = model.state;
  if (state.context_tokens > 0 && num_tokens > state.context_tokens)
    invalid("token_ids has " + std::to_string(num_tokens) + " tokens; " + state.served_model +
            " takes " + std::to_string(state.context_tokens));
  for (const int32_t id : ids)
    if (id < 0 || (state.vocab_rows > 0 && id >= state.vocab_rows))
      invalid("token_ids has " + std::to_string(id) + ", which is outside the vocabulary" +
              (state.vocab_rows > 0 ? " of " + std::to_string(state.vocab_rows) : ""));
}

void check_positions(const ScoreRequest& request) {
  if (request.positions.empty()) invalid("positions is empty");
  int64_t least = 0;
  const auto end = static_cast<int64_t>(request.token_ids.size()) - 1;
  for (const int32_t position : request.positions) {
    if (position < least || position >= end)
      invalid("positions has " + std::to_string(position) +
              "; expected increasing ones, below that of the last of " +
              std::to_string(request.token_ids.size()) + " tokens");
    least = int64_t{position} + 1;
  }
}

// Fills inputs that the model has; others would be refused by it.
class Inputs {
 public:
  explicit Inputs(const ServedModel& model) : model_(model) {
    question_.model = model.state.served_model;
  }

  Inputs& add(std::string_view name, std::vector<int32_t> values) {
    if (!model_.has(name)) return *this;
    question_.inputs.push_back(
        {.name = model_.tensors.find(name)->second.name,
         .values = std::make_shared<const std::vector<int32_t>>(std::move(values))});
    return *this;
  }
  Inputs& ask(std::string_view name, std::vector<int64_t> shape) {
    const TensorSpec& spec = model_.tensors.find(name)->second;
    question_.outputs.push_back({spec.name, spec.datatype, std::move(shape)});
    return *this;
  }
  InferQuestion question() { return std::move(question_); }

 private:
  const ServedModel& model_;
  InferQuestion question_;
};

// The inputs of a question about positions. A model that says K by an input wants it always.
Inputs inputs_of(const ServedModel& model, ScoreRequest request, int64_t k) {
  check_ids(model, request.token_ids);
  check_positions(request);
  Inputs inputs(model);
  const auto last = static_cast<int32_t>(request.token_ids.size());
  inputs.add(kInputIds, std::move(request.token_ids));
  inputs.add(kPositions, std::move(request.positions));
  inputs.add(kTopK, {static_cast<int32_t>(std::max<int64_t>(k, 1))});
  inputs.add(kPromptLength, {last});
  return inputs;
}

}  // namespace

InferQuestion score_question(const ServedModel& model, ScoreRequest request) {
  const int64_t wanted = request.top_k;
  const Abilities& can = model.abilities;
  if (wanted < 0 || wanted > can.max_top_k)
    invalid("top_k is " + std::to_string(wanted) + "; " + model.state.served_model +
            " gives at most " + std::to_string(can.max_top_k));
  if (wanted == 0 && !can.scores)
    invalid(model.state.served_model +
            " has no output given_logprobs: it cannot score tokens that "
            "are given");

  const auto rows = static_cast<int64_t>(request.positions.size());
  // A model whose K is fixed answers with that one; the shapes that are expected must say so.
  const int64_t k = model.fixed_k > 0 ? model.fixed_k : wanted;
  Inputs inputs = inputs_of(model, std::move(request), k);
  if (can.scores) inputs.ask(kGivenLogProbs, {rows});
  if (wanted > 0) inputs.ask(kTopKIds, {rows, k}).ask(kTopKLogProbs, {rows, k});
  return inputs.question();
}

InferQuestion hidden_question(const ServedModel& model, ScoreRequest request) {
  if (!model.abilities.hidden_states)
    invalid(model.state.served_model + " has no output hidden_states");
  if (request.top_k != 0) invalid("top_k has no effect on hidden states; leave it at 0");
  const auto rows = static_cast<int64_t>(request.positions.size());
  const int64_t width = model.tensors.find(kHiddenStates)->second.shape[1];
  return inputs_of(model, std::move(request), model.fixed_k)
      .ask(kHiddenStates, {rows, width})
      .question();
}

InferQuestion reward_question(const ServedModel& model, RewardRequest request) {
  const int64_t labels = model.abilities.rewards;
  if (labels == 0) invalid(model.state.served_model + " has no output scores: it gives no rewards");
  if (request.label < 0 || request.label >= labels)
    invalid("label is " + std::to_string(request.label) + "; the scores of " +
            model.state.served_model + " are " + std::to_string(labels));
  const auto prompt_length = static_cast<int32_t>(request.prompt.size());
  std::vector<int32_t> ids = std::move(request.prompt);
  ids.insert(ids.end(), request.completion.begin(), request.completion.end());
  check_ids(model, ids);

  // A model may want the inputs of other questions too, so those that it has are filled in: the
  // position of the last token, and a K that it takes.
  const auto last = static_cast<int32_t>(ids.size()) - 1;
  Inputs inputs(model);
  inputs.add(kInputIds, std::move(ids)).add(kPositions, {last});
  const auto k = static_cast<int32_t>(std::max<int64_t>(model.fixed_k, 1));
  inputs.add(kTopK, {k}).add(kPromptLength, {prompt_length});
  return inputs.ask(kScores, {labels}).question();
}

}  // namespace retort::engines::kserve

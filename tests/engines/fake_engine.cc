#include "tests/engines/fake_engine.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "base/error.h"
#include "models/generation/engine.h"
#include "models/ops/packed.h"

namespace retort::engines {
namespace {

// Runs `answer` now; the future has its value or its error.
template <class T, class Answer>
Future<T> at_once(Answer&& answer) {
  Promise<T> promise;
  try {
    promise.set_value(answer());
  } catch (...) {
    promise.set_error(std::current_exception());
  }
  return promise.future();
}

}  // namespace

FakeEngine::FakeEngine(const models::Decoder& decoder, Lies lies)
    : decoder_(decoder), lies_(std::move(lies)) {}

int64_t FakeEngine::rows() const {
  return lies_.vocab_rows > 0 ? lies_.vocab_rows : decoder_.config().vocab_size;
}

int32_t FakeEngine::inner(int32_t id) const {
  const auto size = static_cast<int32_t>(decoder_.config().vocab_size);
  return (id + lies_.ids_off + size) % size;
}

int32_t FakeEngine::outer(int32_t id) const {
  const auto size = static_cast<int32_t>(decoder_.config().vocab_size);
  return (id - lies_.ids_off + lies_.answer_ids_off + size) % size;
}

std::vector<int32_t> FakeEngine::inner(std::vector<int32_t> ids) const {
  for (int32_t& id : ids)
    id = inner(id);
  return ids;
}

void FakeEngine::check_ids(const std::vector<int32_t>& ids) const {
  for (const int32_t id : ids)
    if (id >= rows())
      throw Error(ErrorCode::kInvalidArgument, "id " + std::to_string(id) + " is not known");
}

Abilities FakeEngine::abilities() const {
  return {.draws = lies_.draws,
          .scores = lies_.scores,
          .max_top_k = lies_.scores ? lies_.max_top_k.value_or(rows()) : 0,
          .hidden_states = true,
          .seeds = true,
          .max_named_ids = lies_.scores ? lies_.max_top_k.value_or(rows()) : 0};
}

Future<EngineState> FakeEngine::state(Deadline) {
  ++requests_;
  return at_once<EngineState>([&] {
    return EngineState{.version = "1.2",
                       .served_model = "fake",
                       .vocab_rows = rows(),
                       .context_tokens = lies_.context_tokens};
  });
}

Future<Drawn> FakeEngine::draw(DrawRequest request, Deadline) {
  ++requests_;
  if (lies_.never_draw) return unanswered_.emplace_back().future();
  return at_once<Drawn>([&] { return answer(request); });
}

Future<Scored> FakeEngine::score(ScoreRequest request, Deadline) {
  ++requests_;
  return at_once<Scored>([&] { return answer(request); });
}

Future<at::Tensor> FakeEngine::hidden_states(ScoreRequest request, Deadline) {
  ++requests_;
  return at_once<at::Tensor>([&] {
    const c10::InferenceMode inference;
    const std::vector<int64_t> positions(request.positions.begin(), request.positions.end());
    return decoder_.hidden(models::pack_rows({inner(request.token_ids)}))
               .index_select(0, at::tensor(positions)) *
           lies_.hidden_scale;
  });
}

Future<at::Tensor> FakeEngine::log_probs_at(ScoreRequest request, at::Tensor ids, Deadline) {
  ++requests_;
  return at_once<at::Tensor>([&] {
    if (!lies_.names) throw Error(ErrorCode::kInvalidArgument, "the door is shut");
    for (int32_t& position : request.positions)
      position += lies_.named_rows_off;
    at::Tensor all = log_probs(decoder_, inner(request.token_ids), request.positions, 1);
    if (lies_.named_logits) all = all - 2;
    at::Tensor values = all.gather(1, ids.to(at::kLong));
    if (lies_.named_columns) values = std::get<0>(values.sort(1, /*descending=*/true));
    return values.to(at::kFloat).contiguous();
  });
}

at::Tensor FakeEngine::log_probs(const models::Decoder& decoder, const std::vector<int32_t>& ids,
                                 const std::vector<int32_t>& positions, double temperature) const {
  const c10::InferenceMode inference;
  const std::vector<int64_t> rows(positions.begin(), positions.end());
  const at::Tensor states = decoder.hidden(models::pack_rows({ids}));
  const at::Tensor logits = decoder.logits(states.index_select(0, at::tensor(rows)));
  return at::log_softmax(logits.to(at::kDouble) / temperature, 1);
}

Scored FakeEngine::answer(const ScoreRequest& request) {
  check_ids(request.token_ids);
  const bool stale = lies_.stale && !seen_.insert(request.token_ids).second;
  const std::vector<int32_t> ids = inner(request.token_ids);
  at::Tensor all =
      log_probs(stale ? *lies_.stale : decoder_, ids, request.positions, lies_.score_temperature);

  // The request just before this one is taken for one of the same batch.
  const bool beside =
      scored_before_.size() == request.token_ids.size() && scored_before_ != request.token_ids;
  scored_before_ = request.token_ids;
  if (beside) all = all - lies_.batch_noise;
  all = all - lies_.noise_of_repeats * static_cast<double>(requests_);
  if (lies_.half_mass) all = all - std::log(2.0);

  Scored scored;
  for (size_t r = 0; r < request.positions.size(); ++r) {
    const int32_t given = ids[static_cast<size_t>(request.positions[r]) + 1];
    scored.given.push_back(static_cast<float>(all[static_cast<int64_t>(r)][given].item<double>()));
  }
  if (lies_.nan) scored.given.back() = std::numeric_limits<float>::quiet_NaN();
  if (request.top_k == 0) return scored;

  const auto [values, indices] = all.topk(request.top_k - (lies_.short_top_k ? 1 : 0), 1);
  scored.log_probs = values.to(at::kFloat).contiguous();
  scored.ids = indices.to(at::kInt).contiguous();
  auto* id = scored.ids.mutable_data_ptr<int32_t>();
  std::transform(id, id + scored.ids.numel(), id, [&](int32_t inside) { return outer(inside); });
  return scored;
}

Drawn FakeEngine::answer(const DrawRequest& request) {
  check_ids(request.prompt);
  if (lies_.refuse_min_p && request.how.sampling.min_p > 0)
    throw Error(ErrorCode::kInvalidArgument, "min_p is not known here");
  models::DrawOptions how = request.how;
  const double temperature = how.sampling.temperature;
  how.sampling.seed = lies_.one_seed ? 1 : request.seed;
  if (lies_.forget_seeds) how.sampling.seed = static_cast<uint64_t>(requests_) * 1000;
  if (lies_.ignore_top_p) how.sampling.top_p = 1;
  if (lies_.ignore_ends) how.eos_token_ids.clear();
  for (int64_t& id : how.eos_token_ids)
    id = inner(static_cast<int32_t>(id));

  // As with scores, another completion just before is taken for one of the same batch.
  const bool drawn = temperature > 0 && how.max_new_tokens > 1;
  if (drawn && lies_.batch_noise > 0 && seed_before_.value_or(request.seed) != request.seed)
    how.sampling.seed += 1'000'000;
  if (drawn) seed_before_ = request.seed;

  const std::vector<int32_t> prompt = inner(request.prompt);
  models::Engine engine(decoder_, {.num_blocks = 16});
  const models::Completion completion =
      std::move(engine.run({.prompts = {prompt}, .draw = how}).front());

  Drawn answer{.token_ids = {}, .log_probs = {}, .finish_reason = completion.finish_reason};
  std::vector<int32_t> ids = prompt;
  std::vector<int32_t> positions;
  for (const int32_t id : completion.token_ids) {
    positions.push_back(static_cast<int32_t>(ids.size()) - 1);
    ids.push_back(id);
    answer.token_ids.push_back(outer(id));
  }
  if (!lies_.log_probs) return answer;

  const bool hot = lies_.drawn == DrawnMeaning::kTempered && temperature > 0;
  const at::Tensor all = log_probs(decoder_, ids, positions, hot ? temperature : 1);
  for (size_t i = 0; i < completion.token_ids.size(); ++i) {
    const double value = lies_.drawn == DrawnMeaning::kProcessed
                             ? completion.sampling_logps[i]
                             : all[static_cast<int64_t>(i)][completion.token_ids[i]].item<double>();
    answer.log_probs.push_back(
        static_cast<float>(temperature == 1 ? value : value * lies_.drawn_scale));
  }
  return answer;
}

}  // namespace retort::engines

#include "engines/probing/local_copy.h"

#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>

#include "models/generation/generate.h"
#include "models/generation/score.h"
#include "models/ops/packed.h"
#include "roles/payload/payload.h"

namespace retort::engines {

at::Tensor hidden_locally(const models::Decoder& copy, const ScoreRequest& request) {
  const c10::InferenceMode inference;
  const at::Tensor hidden = copy.hidden(models::pack_rows({request.token_ids}));
  const std::vector<int64_t> positions(request.positions.begin(), request.positions.end());
  return hidden.index_select(0, at::tensor(positions, at::kLong));
}

Scored score_locally(const models::Decoder& copy, const ScoreRequest& request) {
  // score() answers for every token after a prompt; the first position's is the first of them.
  const int32_t first = request.positions.front();
  const std::vector<float> all =
      models::score(copy, {.sequences = {request.token_ids}, .prompt_lengths = {first + 1}})
          .front();
  Scored answer;
  for (const int32_t position : request.positions)
    answer.given.push_back(all[static_cast<size_t>(position - first)]);
  if (request.top_k == 0) return answer;

  const c10::InferenceMode inference;
  const models::Head head = copy.head();
  const roles::Payload payload = roles::make_payload(
      hidden_locally(copy, request), head.weight,
      {.kind = roles::PayloadKind::kTopK, .top_k = request.top_k}, {}, {}, head.softcap);
  answer.ids = payload.ids;
  answer.log_probs = payload.logps;
  return answer;
}

std::vector<int32_t> greedy_locally(const models::Decoder& copy, const std::vector<int32_t>& prompt,
                                    int64_t count) {
  return models::generate(copy, {prompt},
                          {.draw = {.sampling = {.temperature = 0}, .max_new_tokens = count}})
      .front()
      .token_ids;
}

}  // namespace retort::engines

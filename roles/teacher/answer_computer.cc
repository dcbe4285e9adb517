#include "roles/teacher/answer_computer.h"

#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include "roles/payload/draws.h"
#include "roles/teacher/requests.h"
#include "roles/teacher/shared_packs.h"

namespace retort::roles {

AnswerComputer::AnswerComputer(models::Decoder decoder, parallel::World* world, bool on_device,
                               KeptRows::Options kept)
    : decoder_(std::move(decoder)), on_device_(on_device), kept_(kept) {
  decoder_.set_requires_grad(false);
  if (world != nullptr) pipeline_ = std::make_unique<Pipeline>(decoder_, world->pp());
}

bool AnswerComputer::forms_answers() const {
  const models::Placement& place = decoder_.placement();
  return place.stage == place.pp - 1;
}

// The final hidden states of each request, undefined where the pipeline does not end.
std::vector<at::Tensor> AnswerComputer::rows_of(const std::vector<ForwardRequest>& requests,
                                                int64_t now_ms) {
  // What was kept needs no forward pass. Every rank keeps and forgets alike.
  std::vector<at::Tensor> rows(requests.size());
  std::vector<size_t> places;  // of those without
  std::vector<ForwardRequest> missing;
  for (size_t i = 0; i < requests.size(); ++i) {
    const bool named = requests[i].spec.names_ids() && requests[i].ids.defined();
    if (named && kept_.take(kept_key(requests[i]), now_ms, rows[i])) continue;
    places.push_back(i);
    missing.push_back(requests[i]);
  }
  if (missing.empty()) return rows;

  // What sequences begin with alike, as completions of one prompt do, is computed once; not on a
  // device, whose kernels know no forks.
  MergedPacks merged = merge_packs(missing, decoder_.config().vocab_size);
  if (decoder_.device().is_cpu()) share_prefixes(merged);
  merged.tokens.wanted = at::cat(merged.rows);
  const at::Tensor hidden =
      pipeline_ ? pipeline_->hidden(merged.tokens) : decoder_.hidden(merged.tokens);
  ++forwards_;
  if (!forms_answers()) return rows;

  int64_t begin = 0;  // of the request's rows
  for (size_t i = 0; i < places.size(); ++i) {
    const int64_t count = merged.rows[i].numel();
    rows[places[i]] = hidden.narrow(0, begin, count);
    begin += count;
  }
  return rows;
}

void AnswerComputer::compute(const std::vector<ForwardRequest>& requests, int64_t now_ms,
                             const Deliver& deliver) {
  // Not inference mode if there are collectives: their tensors are also used by threads of their
  // own.
  const c10::InferenceMode inference(pipeline_ == nullptr);
  const c10::NoGradGuard no_grad;

  std::vector<at::Tensor> rows = rows_of(requests, now_ms);
  const int64_t row_bytes =
      decoder_.config().hidden_size * static_cast<int64_t>(c10::elementSize(decoder_.dtype()));
  for (size_t i = 0; i < requests.size(); ++i) {
    const at::Tensor own = std::move(rows[i]);
    const bool keeps = asks_to_keep(requests[i]);
    if (keeps)
      kept_.keep(kept_key(requests[i]), own, requests[i].positions.numel() * row_bytes, now_ms);
    ++served_;
    if (forms_answers()) deliver(i, keeps ? Payload{} : answer(requests[i], own));
  }
}

// `hidden_rows`: the final hidden states at the request's positions.
Payload AnswerComputer::answer(const ForwardRequest& request, const at::Tensor& hidden_rows) const {
  at::Tensor targets = request.ids;
  if (request.spec.kind == PayloadKind::kTargetLogProbs) targets = targets_of(request);
  const models::Head head = decoder_.head();
  PayloadSpec spec = request.spec;
  spec.seed = draw_seed(spec.seed, request.request_id);
  Payload whole = make_payload(hidden_rows, head.weight, spec, targets, head.vocab, head.softcap,
                               on_device_ ? hidden_rows.device() : at::Device(at::kCPU));
  whole.label.spec = request.spec;
  if (request.spec.support == Support::kStudent)
    whole.ids = at::Tensor();  // which the student knows
  return whole;
}

}  // namespace retort::roles

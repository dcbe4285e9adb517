#include "roles/teacher/answer_computer.h"

#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include "roles/payload/draws.h"
#include "roles/teacher/requests.h"
#include "roles/teacher/shared_packs.h"

namespace retort::roles {

AnswerComputer::AnswerComputer(models::Decoder decoder, parallel::World* world, bool on_device)
    : decoder_(std::move(decoder)), on_device_(on_device) {
  decoder_.set_requires_grad(false);
  if (world != nullptr) pipeline_ = std::make_unique<Pipeline>(decoder_, world->pp());
}

bool AnswerComputer::forms_answers() const {
  const models::Placement& place = decoder_.placement();
  return place.stage == place.pp - 1;
}

void AnswerComputer::compute(const std::vector<ForwardRequest>& requests, const Deliver& deliver) {
  // Not inference mode if there are collectives: their tensors are also used by threads of their
  // own.
  const c10::InferenceMode inference(pipeline_ == nullptr);
  const c10::NoGradGuard no_grad;

  // What sequences begin with alike, as completions of one prompt do, is computed once; not on a
  // device, whose kernels know no forks.
  MergedPacks merged = merge_packs(requests, decoder_.config().vocab_size);
  if (decoder_.device().is_cpu()) share_prefixes(merged);
  merged.tokens.wanted = at::cat(merged.rows);
  const at::Tensor hidden =
      pipeline_ ? pipeline_->hidden(merged.tokens) : decoder_.hidden(merged.tokens);
  ++forwards_;
  if (!forms_answers()) {
    served_ += static_cast<int64_t>(requests.size());
    return;
  }

  int64_t begin = 0;  // of the request's rows
  for (size_t i = 0; i < requests.size(); ++i) {
    const int64_t count = merged.rows[i].numel();
    Payload whole = answer(requests[i], hidden.narrow(0, begin, count));
    begin += count;
    ++served_;
    deliver(i, std::move(whole));
  }
}

// `hidden_rows`: the final hidden states at the request's positions.
Payload AnswerComputer::answer(const ForwardRequest& request, const at::Tensor& hidden_rows) const {
  at::Tensor targets;
  if (request.spec.kind == PayloadKind::kTargetLogProbs) targets = targets_of(request);
  const models::Head head = decoder_.head();
  PayloadSpec spec = request.spec;
  spec.seed = draw_seed(spec.seed, request.request_id);
  Payload whole = make_payload(hidden_rows, head.weight, spec, targets, head.vocab, head.softcap,
                               on_device_ ? hidden_rows.device() : at::Device(at::kCPU));
  whole.label.spec = request.spec;
  return whole;
}

}  // namespace retort::roles

#include "roles/teacher/answer_computer.h"

#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/log.h"
#include "roles/payload/draws.h"
#include "roles/teacher/requests.h"
#include "roles/teacher/shared_packs.h"

namespace retort::roles {

AnswerComputer::AnswerComputer(models::Decoder decoder, parallel::World* world, bool on_device,
                               HiddenStateCache::Options kept)
    : decoder_(std::move(decoder)), on_device_(on_device), kept_(kept) {
  decoder_.set_requires_grad(false);
  if (world != nullptr) pipeline_ = std::make_unique<Pipeline>(decoder_, world->pp());
}

bool AnswerComputer::forms_answers() const {
  const models::Placement& place = decoder_.placement();
  return place.stage == place.pp - 1;
}

int64_t AnswerComputer::row_bytes(const ForwardRequest& request) const {
  return request.positions.numel() * decoder_.config().hidden_size *
         static_cast<int64_t>(c10::elementSize(decoder_.dtype()));
}

// True if rows are computed ahead for a request that asks to keep them. `key` is its kept_key,
// `ahead` the bytes of the rows that the same pass keeps for others.
bool AnswerComputer::keeps(const ForwardRequest& request, const std::string& key, int64_t ahead) {
  if (kept_.contains(key)) return false;
  if (kept_.has_room(ahead + row_bytes(request))) return true;
  if (!std::exchange(said_full_, true)) {
    RETORT_LOG(kWarning) << "no room to keep " << row_bytes(request) << " bytes beside the "
                         << kept_.bytes() << " of rows that wait for the student's ids (support): "
                         << "such rows are computed once the ids are there, not ahead; a smaller "
                         << "distill.prefetch needs less";
  }
  return false;
}

// Answers the requests that need no forward pass, and leaves the others for one. Every rank comes
// to the same pass, also one that has no rows: the books count stated bytes, not tensors.
AnswerComputer::Pass AnswerComputer::answer_kept(const std::vector<ForwardRequest>& requests,
                                                 const Deliver& deliver) {
  Pass pass;
  std::map<std::string, size_t> places;  // in the pass, of requests that keep or name
  int64_t ahead = 0;                     // bytes that are kept behind it
  for (size_t i = 0; i < requests.size(); ++i) {
    const ForwardRequest& request = requests[i];
    if (!request.spec.names_ids()) {
      pass.requests.push_back(request);
      pass.wanted_by.push_back({i});
      pass.keys.emplace_back();
      continue;
    }

    const std::string key = kept_key(request);
    if (!asks_to_keep(request)) {
      kept_.forget_before(request.step);
      at::Tensor rows;
      if (kept_.take(key, rows)) {
        if (forms_answers()) deliver(i, answer(request, rows));
        continue;
      }
    } else if (!places.contains(key)) {
      if (!keeps(request, key, ahead)) {
        if (forms_answers()) deliver(i, Payload{});
        continue;
      }
      ahead += row_bytes(request);
    }

    // A request that keeps rows and one that names ids for them may be here together. They share
    // one place in the pass.
    const auto [place, is_new] = places.try_emplace(key, pass.requests.size());
    if (is_new) {
      pass.requests.push_back(request);
      pass.wanted_by.emplace_back();
      pass.keys.push_back(key);
    }
    pass.wanted_by[place->second].push_back(i);
  }
  return pass;
}

// The final hidden states of each request, undefined where the pipeline does not end.
std::vector<at::Tensor> AnswerComputer::rows_of(const std::vector<ForwardRequest>& requests) {
  // Prefixes that sequences share, as completions of one prompt do, are computed once. A device
  // computes every sequence whole, because its kernels know no forks.
  MergedPacks merged = merge_packs(requests, decoder_.config().vocab_size);
  if (decoder_.device().is_cpu()) share_prefixes(merged);
  merged.tokens.wanted = at::cat(merged.rows);
  const at::Tensor hidden =
      pipeline_ ? pipeline_->hidden(merged.tokens) : decoder_.hidden(merged.tokens);
  ++forwards_;

  std::vector<at::Tensor> rows(requests.size());
  if (!forms_answers()) return rows;
  int64_t begin = 0;  // of the request's rows
  for (size_t i = 0; i < requests.size(); ++i) {
    const int64_t count = merged.rows[i].numel();
    rows[i] = hidden.narrow(0, begin, count);
    begin += count;
  }
  return rows;
}

void AnswerComputer::compute(const std::vector<ForwardRequest>& requests, const Deliver& deliver) {
  // Collectives hand tensors to threads of their own, which may not write into those of inference
  // mode, so a model of several ranks goes without it.
  const c10::InferenceMode inference(pipeline_ == nullptr);
  const c10::NoGradGuard no_grad;

  served_ += static_cast<int64_t>(requests.size());
  const Pass pass = answer_kept(requests, deliver);
  if (pass.requests.empty()) return;
  std::vector<at::Tensor> rows = rows_of(pass.requests);
  for (size_t p = 0; p < rows.size(); ++p) {
    const at::Tensor own = std::move(rows[p]);
    const std::vector<size_t>& wanted_by = pass.wanted_by[p];
    for (const size_t i : wanted_by)
      if (forms_answers())
        deliver(i, asks_to_keep(requests[i]) ? Payload{} : answer(requests[i], own));

    // If nobody has named ids for these rows yet, they are kept for the request that will.
    const ForwardRequest& first = pass.requests[p];
    const bool all_wait =
        std::ranges::all_of(wanted_by, [&](size_t i) { return asks_to_keep(requests[i]); });
    if (all_wait) kept_.keep(pass.keys[p], first.step, own, row_bytes(first));
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

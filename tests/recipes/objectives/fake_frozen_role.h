// A frozen role without a process: it answers from a model in this one.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <vector>

#include "models/decoder/decoder.h"
#include "roles/payload/payload.h"
#include "roles/teacher/frozen_answers.h"
#include "roles/teacher/requests.h"
#include "tests/roles/nano_model.h"

namespace retort::test {

// For a student or its frozen role.
inline models::Decoder nano_llama(uint64_t seed) {
  return models::Decoder::random(roles::nano_model(models::Family::kLlama, true, 2), seed,
                                 at::kFloat);
}

class FakeFrozenRole : public roles::FrozenAnswers {
 public:
  FakeFrozenRole(models::Decoder decoder, roles::PayloadSpec spec)
      : decoder_(std::move(decoder)), spec_(spec) {
    if (spec.kind == roles::PayloadKind::kHiddenStates) head_ = decoder_.head_weight().detach();
  }

  roles::PendingPayload send(uint64_t request_id, int64_t step, const models::PackedTokens& tokens,
                             const at::Tensor& positions) override {
    EXPECT_TRUE(ids.insert(request_id).second) << "request " << request_id << " was sent twice";
    roles::PendingPayload pending;
    pending.request = {.request_id = request_id,
                       .step = step,
                       .input_ids = tokens.input_ids.to(at::kInt),
                       .cu_seqlens = at::tensor(tokens.cu_seqlens, at::kInt),
                       .positions = positions.to(at::kInt),
                       .spec = spec_,
                       .columns = {}};
    return pending;
  }

  void name_ids(roles::PendingPayload& pending, const at::Tensor& ids) override {
    pending.request.ids = ids.to(at::kInt);
  }

  roles::Payload receive(roles::PendingPayload pending, double*) override {
    const c10::NoGradGuard no_grad;
    const roles::ForwardRequest& request = pending.request;
    const models::PackedTokens tokens =
        roles::unpack_request(request, decoder_.config().vocab_size);
    at::Tensor targets = request.ids;
    if (spec_.kind == roles::PayloadKind::kTargetLogProbs) targets = roles::targets_of(request);
    const at::Tensor rows =
        decoder_.hidden(tokens).index_select(0, request.positions.to(at::kLong));
    return roles::make_payload(rows, decoder_.head().weight, spec_, targets, {},
                               decoder_.head().softcap);
  }

  const at::Tensor& head_weight() const override { return head_; }
  int64_t common_vocab() const override { return 0; }

  std::set<uint64_t> ids;  // of all requests

 private:
  models::Decoder decoder_;
  roles::PayloadSpec spec_;
  at::Tensor head_;  // undefined unless hidden states are answered
};

}  // namespace retort::test

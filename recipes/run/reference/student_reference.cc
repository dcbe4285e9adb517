#include "recipes/run/reference/student_reference.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <utility>

#include "roles/payload/payload.h"

namespace retort::recipes {

roles::PendingPayload StudentAnswers::send(uint64_t /*request_id*/, int64_t /*step*/,
                                           const models::PackedTokens& tokens,
                                           const at::Tensor& positions) {
  roles::Payload payload;
  payload.logps = at::empty({0}, at::kFloat);
  if (positions.numel() > 0) {
    // The row at a position predicts the token behind it.
    const at::Tensor rows = trainer_.hidden_before_training(models::wanting(tokens, positions));
    const at::Tensor targets = tokens.input_ids.to(at::kLong).index_select(0, positions + 1);
    if (rows.defined()) {
      const models::Head head = trainer_.head_before_training();
      payload = roles::make_payload(rows, head.weight,
                                    {.kind = roles::PayloadKind::kTargetLogProbs,
                                     .temperature = temperature_,
                                     .common_vocab = num_ids_},
                                    targets, head.vocab, head.softcap);
    }
  }

  return roles::answered(std::move(payload));
}

roles::Payload StudentAnswers::receive(roles::PendingPayload pending, double* /*waited*/) {
  return pending.reply.get();
}

std::unique_ptr<Reference> make_student_reference(roles::Trainer& trainer, const LoraOptions& lora,
                                                  double temperature, int64_t num_ids) {
  if (lora.adapter) trainer.keep_first_adapter(*lora.adapter);
  return std::make_unique<Reference>(
      std::make_unique<StudentAnswers>(trainer, temperature, num_ids));
}

}  // namespace retort::recipes

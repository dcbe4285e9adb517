#include "recipes/grpo/student_rows.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <vector>

#include "recipes/losses/host_rows.h"
#include "recipes/losses/linear_log_probs.h"
#include "recipes/rollout/drawn_ids.h"

namespace retort::recipes {

StudentRows student_rows(const roles::Trainer& trainer, const GrpoMicroBatch& batch,
                         double temperature, int64_t num_ids) {
  if (batch.batch.num_targets() == 0)
    return {.log_probs = at::empty({0}, at::kFloat), .entropy = at::empty({0}, at::kFloat)};
  const c10::NoGradGuard no_grad;
  const at::Tensor hidden = trainer.hidden(batch.tokens);
  if (!hidden.defined()) return {};  // the pipeline ends elsewhere

  const models::Head head = trainer.decoder().head();
  const auto rows = losses::linear_log_probs(
      hidden, head.weight, bias_of_drawn_ids(head, num_ids), batch.batch.targets,
      {.temperature = temperature, .entropy = true}, head.vocab, head.softcap);
  const std::vector<at::Tensor> here = losses::in_host_memory({rows.log_probs, rows.entropy});
  return {.log_probs = here[0], .entropy = here[1]};
}

}  // namespace retort::recipes

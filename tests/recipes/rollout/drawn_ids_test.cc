// Completions and the trainer's log-probabilities of them are over the same ids.
#include "recipes/rollout/drawn_ids.h"

#include <gtest/gtest.h>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "models/generation/engine.h"
#include "recipes/data/completion_sample.h"
#include "recipes/losses/linear_log_probs.h"
#include "tests/roles/nano_model.h"

namespace retort::recipes {
namespace {

constexpr double kTemperature = 0.8;

struct Drawn {
  std::vector<int32_t> prompt{3, 7, 5};
  models::Completion completion;
};

// A completion of ids below `num_ids`, by an engine as a generator has it.
Drawn draw(const models::Decoder& decoder, int64_t num_ids) {
  Drawn drawn;
  models::Engine engine(decoder, {.num_blocks = 8});
  drawn.completion =
      engine
          .run({.prompts = {drawn.prompt},
                .draw = {.sampling = {.temperature = kTemperature, .num_ids = num_ids},
                         .max_new_tokens = 24}})
          .at(0);
  return drawn;
}

// The largest difference between what the trainer and the generator say of a token.
double difference(const models::Decoder& decoder, const Drawn& drawn, int64_t num_ids) {
  const c10::NoGradGuard no_grad;
  const data::MicroBatch batch =
      data::make_micro_batch({data::completion_sample(drawn.prompt, drawn.completion.token_ids)});
  const models::Head head = decoder.head();
  const at::Tensor rows = models::rows_at(decoder.hidden(batch.tokens), batch.predict_positions);
  const at::Tensor trained =
      losses::linear_log_probs(rows, head.weight, bias_of_drawn_ids(head, num_ids), batch.targets,
                               {.temperature = kTemperature}, head.vocab)
          .log_probs;

  double largest = 0;
  for (size_t i = 0; i < drawn.completion.token_ids.size(); ++i)
    largest = std::max(largest, std::abs(trained[static_cast<int64_t>(i)].item<double>() -
                                         drawn.completion.sampling_logps[i]));
  return largest;
}

TEST(DrawnIds, TheTrainerLeavesOutWhatIsNeverDrawn) {
  const models::Decoder decoder =
      models::Decoder::random(roles::nano_model(models::Family::kQwen3, true, 2), 7, at::kFloat);
  const int64_t rows = decoder.config().vocab_size;
  const int64_t known = rows - rows / 4;
  const Drawn drawn = draw(decoder, known);
  ASSERT_EQ(drawn.completion.token_ids.size(), 24u);
  EXPECT_LT(*std::max_element(drawn.completion.token_ids.begin(), drawn.completion.token_ids.end()),
            known);
  EXPECT_LT(difference(decoder, drawn, known), 1e-4);
  EXPECT_GT(difference(decoder, drawn, 0), 0.1) << "a quarter of the mass is no rounding error";
  EXPECT_LT(difference(decoder, draw(decoder, 0), 0), 1e-4) << "where every id is drawn";
}

}  // namespace
}  // namespace retort::recipes

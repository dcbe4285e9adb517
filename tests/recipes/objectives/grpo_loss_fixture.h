// The loss of an objective over a round, and its formula over the same samples.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <array>
#include <initializer_list>
#include <utility>
#include <vector>

#include "tests/recipes/objectives/grpo_fixture.h"
#include "tests/recipes/objectives/grpo_formula.h"

namespace retort::recipes {

// Samples of older weights: the ratio is to the generator's probabilities.
inline const GrpoOptions kStale{.epsilon_high = 0.3, .max_staleness = 1};

class GrpoLossTest : public GrpoTest {
 protected:
  using GrpoTest::GrpoTest;
  struct Computed {
    at::Tensor loss;
    MetricsRow row;
  };
  static Computed compute(GrpoObjective& objective, int64_t step, const models::Decoder& student) {
    const StepInfo info = objective.next_step(step);
    parallel::World alone({.role = "student", .layout = {}});
    objective.begin_step(alone.dp());
    StepSums sums;
    sums.values.resize(objective.num_values(), 0.0);
    Computed computed{.loss = at::zeros({}), .row = {.step = step, .values = {}}};
    for (size_t i = 0; i < info.micro_batches; ++i) {
      const at::Tensor hidden = student.hidden(objective.tokens(i));
      computed.loss = computed.loss + objective.loss_sum(student.head(), hidden, i, sums);
    }
    computed.loss = computed.loss / objective.divisor(sums);
    objective.finish_step(sums, computed.row);
    return computed;
  }
  static test::Expected formula(const models::Decoder& student,
                                const std::vector<test::Known>& samples,
                                const GrpoOptions& options) {
    return test::grpo_formula(student, samples, options, kTemperature, test::kLongestAnswer);
  }

  // A numbered answer to a prompt. The generator's log-probabilities of its tokens are not the
  // student's, but off by kOffsets in turn.
  test::Known answered(const std::vector<int32_t>& prompt, uint64_t sample_id) const {
    const c10::NoGradGuard no_grad;
    test::Known sample{.prompt = prompt, .completion = test::numbered_answer(sample_id)};
    const at::Tensor logps = of_tokens(distributions(student_, sample, kTemperature), sample);
    for (size_t i = 0; i < sample.completion.token_ids.size(); ++i) {
      const double logp = logps[static_cast<int64_t>(i)].item<double>();
      sample.completion.sampling_logps[i] =
          static_cast<float>(logp + kOffsets[(sample_id + i) % kOffsets.size()]);
    }
    return sample;
  }
  Setting setting(const GrpoOptions& options) const {
    return {.grpo = options,
            .answer = [this](const data::PromptSample& prompt, uint64_t id, uint64_t) {
              return answered(prompt.prompt_ids, id).completion;
            }};
  }

  // The samples of prompts with the rewards of length_rewards().
  std::vector<test::Known> samples_of(std::initializer_list<int64_t> prompts) const {
    std::vector<test::Known> samples;
    for (const int64_t prompt : prompts)
      for (int64_t g = 0; g < kGenerations; ++g) {
        test::Known sample = answered(files_.prompts()->get(prompt)->prompt_ids,
                                      static_cast<uint64_t>(prompt * kGenerations + g));
        sample.reward = test::length_reward(sample.completion);
        sample.old = at::tensor(sample.completion.sampling_logps, at::kFloat).to(at::kDouble);
        samples.push_back(std::move(sample));
      }
    compare_groups(samples, kGenerations);
    return samples;
  }
  std::vector<test::Known> first_round() const { return samples_of({0, 1}); }

  // The gradient of a loss with respect to all parameters of the student, which forgets it again.
  at::Tensor gradient(const at::Tensor& loss) const {
    loss.backward();
    std::vector<at::Tensor> parts;
    for (const auto& parameter : student_.parameters()) {
      at::Tensor value = parameter.value;
      parts.push_back(value.grad().detach().clone().flatten());
      value.mutable_grad() = at::Tensor();
    }
    return at::cat(parts);
  }
  void expect_same_gradient(const at::Tensor& loss, const at::Tensor& formula) const {
    const at::Tensor mine = gradient(loss);
    const at::Tensor theirs = gradient(formula);
    const double largest = theirs.abs().max().item<double>();
    EXPECT_GT(largest, 1e-3);
    EXPECT_LT((mine - theirs).abs().max().item<double>(), 1e-4 * largest);
  }

  static models::Decoder trainable(uint64_t seed) {
    models::Decoder student = model(seed);
    student.set_requires_grad(true);
    return student;
  }

  // Ratios 1.65, 1.11, 0.95 and 0.67, of which kStale clips the first and the last.
  static constexpr std::array<double, 4> kOffsets{-0.5, -0.1, 0.05, 0.4};
  models::Decoder student_ = trainable(7);
};

}  // namespace retort::recipes

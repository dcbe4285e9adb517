// The loss of GRPO as its formula says it, with LibTorch's operations in double precision.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "models/decoder/decoder.h"
#include "models/generation/request.h"
#include "models/ops/packed.h"
#include "recipes/document/grpo_options.h"

namespace retort::test {

// A sample as a test knows it.
struct Known {
  std::vector<int32_t> prompt;
  models::Completion completion;
  double reward = 0;
  double advantage = 0;
  at::Tensor old;  // [T] double: log-probabilities that the ratio is to; undefined: the student's
  at::Tensor weight;    // [T] double, of its surrogate; undefined: 1
  bool masked = false;  // has no loss, but counts as losses::policy_divisor says
  // Places of the tokens that are trained on; empty: all of them.
  std::vector<int64_t> targets;

  int64_t num_tokens() const { return static_cast<int64_t>(completion.token_ids.size()); }
  int64_t length() const {
    return targets.empty() ? num_tokens() : static_cast<int64_t>(targets.size());
  }
  // [T, ...] of all tokens -> those of the targets.
  at::Tensor of_targets(const at::Tensor& values) const {
    return targets.empty() ? values : values.index_select(0, at::tensor(targets, at::kLong));
  }
};

// log-probabilities at a temperature, of the whole vocabulary before each token of the completion.
// [T, V] double, attached to the student's parameters.
inline at::Tensor distributions(const models::Decoder& student, const Known& sample,
                                double temperature) {
  std::vector<int32_t> row = sample.prompt;
  row.insert(row.end(), sample.completion.token_ids.begin(), sample.completion.token_ids.end());
  const auto first = static_cast<int64_t>(sample.prompt.size()) - 1;
  const at::Tensor hidden =
      student.hidden(models::pack_rows({row})).narrow(0, first, sample.num_tokens());
  const at::Tensor logits = at::matmul(sample.of_targets(hidden).to(at::kDouble),
                                       student.head_weight().to(at::kDouble).t());
  return at::log_softmax(logits / temperature, -1);
}

// Those of the completion's tokens: [T].
inline at::Tensor of_tokens(const at::Tensor& distributions, const Known& sample) {
  const at::Tensor ids =
      sample.of_targets(at::tensor(sample.completion.token_ids, at::kInt).to(at::kLong));
  return distributions.gather(1, ids.unsqueeze(1)).squeeze(1);
}

// Advantages within groups of `num_generations` adjacent samples, from their rewards.
inline void compare_groups(std::vector<Known>& samples, size_t num_generations) {
  for (size_t begin = 0; begin < samples.size(); begin += num_generations) {
    std::vector<double> rewards;
    for (size_t i = begin; i < begin + num_generations; ++i)
      rewards.push_back(samples[i].reward);
    const at::Tensor group = at::tensor(rewards, at::kDouble);
    const at::Tensor advantages = (group - group.mean()) / (group.std() + 1e-4);
    for (size_t i = begin; i < begin + num_generations; ++i)
      samples[i].advantage = advantages[static_cast<int64_t>(i - begin)].item<double>();
  }
}

struct Expected {
  at::Tensor loss;  // attached to the student's parameters
  double entropy = 0;
  double clipped_low = 0;  // tokens
  double clipped_high = 0;
  double clipped_delta = 0;
  double off_policy = 0;  // samples
  double tokens = 0;
  double high_entropy = 0;  // tokens
};

inline at::Tensor entropies_of(const at::Tensor& distributions) {
  return -(distributions.exp() * distributions).sum(-1);
}

// Of all tokens with a loss, from the lowest on.
inline std::vector<double> sorted_entropies(const models::Decoder& student,
                                            const std::vector<Known>& samples, double temperature) {
  std::vector<double> entropies;
  for (const Known& sample : samples) {
    if (sample.masked) continue;
    const at::Tensor of_sample = entropies_of(distributions(student, sample, temperature)).detach();
    const double* value = of_sample.const_data_ptr<double>();
    entropies.insert(entropies.end(), value, value + sample.length());
  }
  std::sort(entropies.begin(), entropies.end());
  return entropies;
}

// The least entropy of the share `quantile` of highest ones: torch.quantile's line between two.
inline double formula_threshold(const std::vector<double>& sorted, double quantile) {
  const double place = (1 - quantile) * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const double above = sorted.at(std::min(below + 1, sorted.size() - 1));
  return sorted.at(below) + (place - static_cast<double>(below)) * (above - sorted[below]);
}

inline Expected grpo_formula(const models::Decoder& student, const std::vector<Known>& samples,
                             const recipes::GrpoOptions& options, double temperature,
                             double max_new_tokens) {
  const double low = 1 - options.epsilon;
  const double high = 1 + options.epsilon_high.value_or(options.epsilon);
  const bool cispo = options.loss_type == losses::PolicyLossType::kCispo;
  at::Tensor entropy = at::zeros({}, at::kDouble);
  const bool by_sequence =
      options.importance_sampling_level == losses::ImportanceSamplingLevel::kSequence;
  Expected expected{.loss = at::zeros({}, at::kDouble)};
  const double threshold = formula_threshold(sorted_entropies(student, samples, temperature),
                                             options.top_entropy_quantile);
  double picked = 0;  // tokens
  for (const Known& sample : samples) {
    if (sample.masked) continue;
    const at::Tensor all = distributions(student, sample, temperature);
    const at::Tensor logps = of_tokens(all, sample);
    at::Tensor log_ratio = logps - (sample.old.defined() ? sample.old : logps.detach());
    if (by_sequence) log_ratio = log_ratio.mean().expand_as(log_ratio);
    const at::Tensor ratio = log_ratio.exp();
    const at::Tensor bounded = options.delta ? ratio.clamp_max(*options.delta) : ratio;
    const at::Tensor surrogate =
        cispo ? ratio.clamp_max(options.epsilon_high.value()).detach() * sample.advantage * logps
              : at::minimum(bounded * sample.advantage, ratio.clamp(low, high) * sample.advantage);
    const at::Tensor is_high = (entropies_of(all) >= threshold - 1e-9).to(at::kDouble);
    const at::Tensor weighed =
        (sample.weight.defined() ? surrogate * sample.weight : surrogate) * is_high;
    picked += is_high.sum().item<double>();
    const bool mean = options.loss_type == losses::PolicyLossType::kGrpo;
    const bool dropped =
        sample.advantage < 0 && options.off_policy_mask_threshold &&
        (sample.old - logps).mean().item<double>() > *options.off_policy_mask_threshold;
    expected.off_policy += dropped;
    if (!dropped) expected.loss = expected.loss - (mean ? weighed.mean() : weighed.sum());

    // What is only measured.
    const auto count = [](const at::Tensor& where) { return where.sum().item<double>(); };
    expected.tokens += static_cast<double>(sample.length());
    expected.entropy -= count(all.exp() * all);
    entropy = entropy + (entropies_of(all) * is_high).sum();
    if (sample.advantage < 0) expected.clipped_low += count(ratio < low);
    if (sample.advantage > 0) expected.clipped_high += count(ratio > (cispo ? high - 1 : high));
    if (sample.advantage < 0 && options.delta)
      expected.clipped_delta += count(ratio > *options.delta);
  }

  expected.high_entropy = picked;
  const auto sequences = static_cast<double>(samples.size());
  const std::map<losses::PolicyLossType, double> divisors{
      {losses::PolicyLossType::kGrpo, sequences},
      {losses::PolicyLossType::kBnpo, expected.tokens},
      {losses::PolicyLossType::kDapo, expected.tokens},
      {losses::PolicyLossType::kCispo, expected.tokens},
      {losses::PolicyLossType::kDrGrpo, sequences * max_new_tokens}};
  expected.loss =
      expected.loss / divisors.at(options.loss_type) - options.entropy_coef * entropy / picked;
  expected.entropy /= expected.tokens;
  return expected;
}

}  // namespace retort::test

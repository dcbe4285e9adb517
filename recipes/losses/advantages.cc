#include "recipes/losses/advantages.h"

#include <ATen/ops/empty.h>

#include <cmath>
#include <functional>
#include <vector>

#include "base/error.h"

namespace retort::losses {
namespace {

constexpr double kDeviationEpsilon = 1e-4;  // as TRL has it

// Mean and deviation (with Bessel's correction, 0 for fewer than two) of what is not NaN.
struct Moments {
  int64_t count = 0;
  double mean = 0;
  double deviation = 0;
};
Moments moments_of(const double* begin, int64_t size) {
  Moments m;
  double sum = 0;
  double squares = 0;
  for (int64_t i = 0; i < size; ++i)
    if (!std::isnan(begin[i])) {
      sum += begin[i];
      ++m.count;
    }
  if (m.count > 0) m.mean = sum / m.count;

  // The sum of equal values is rounded: their mean is their value all the same, so that none of
  // them has an advantage over it.
  double first = NAN;
  bool equal = true;
  for (int64_t i = 0; i < size; ++i) {
    if (std::isnan(begin[i])) continue;
    if (std::isnan(first)) first = begin[i];
    equal = equal && begin[i] == first;
  }
  if (equal && m.count > 0) m.mean = first;

  // The deviation takes a second pass, which squares small differences: a sum of squares less the
  // squared mean would cancel.
  for (int64_t i = 0; i < size; ++i)
    if (!std::isnan(begin[i])) squares += (begin[i] - m.mean) * (begin[i] - m.mean);
  if (m.count > 1) m.deviation = std::sqrt(squares / (m.count - 1));
  return m;
}

std::vector<double> read_rewards(const at::Tensor& rewards, int64_t num_generations) {
  if (!rewards.defined() || rewards.dim() != 1 ||
      (rewards.scalar_type() != at::kFloat && rewards.scalar_type() != at::kDouble))
    throw Error(ErrorCode::kInvalidArgument,
                "rewards must be [S] float32 or float64, one for each sample");
  if (num_generations < 1 || rewards.size(0) % num_generations != 0)
    throw Error(ErrorCode::kInvalidArgument,
                "the rewards must be whole groups of num_generations adjacent samples")
        .with("rewards", rewards.size(0))
        .with("num_generations", num_generations);
  const at::Tensor doubles = rewards.detach().to(at::kCPU, at::kDouble).contiguous();
  const double* data = doubles.data_ptr<double>();
  std::vector<double> values(data, data + doubles.size(0));
  // NaN marks a sample that cannot be scored and passes. An infinite reward would make every
  // advantage of its group NaN.
  for (size_t i = 0; i < values.size(); ++i)
    if (std::isinf(values[i]))
      throw Error(ErrorCode::kInvalidArgument,
                  "a reward is infinite: give a number, or NaN for a sample that cannot be scored")
          .with("sample", i);
  return values;
}

// The rewards group by group, and what is common to every estimator.
class Batch {
 public:
  Batch(const at::Tensor& rewards, int64_t num_generations)
      : values_(read_rewards(rewards, num_generations)),
        num_generations_(num_generations),
        all_(moments_of(values_.data(), size())) {
    for (int64_t begin = 0; begin < size(); begin += num_generations)
      groups_.push_back(moments_of(values_.data() + begin, num_generations));
  }

  int64_t size() const { return static_cast<int64_t>(values_.size()); }
  const Moments& all() const { return all_; }
  const Moments& group_of(int64_t i) const { return groups_[i / num_generations_]; }
  double operator[](int64_t i) const { return values_[i]; }

  // `advantage(i)` of every scorable sample, 0 for the others; `normalize`: then shifted and scaled
  // by its own moments.
  Advantages finish(bool batch_deviation, bool normalize,
                    const std::function<double(int64_t)>& advantage) const {
    // A sample without a score stays NaN here, so that it has no part in the moments below. One
    // whose group (or batch) has no spread has no advantage either, and a metric says how many
    // there are.
    std::vector<double> results(values_.size(), NAN);
    int64_t without_signal = 0;
    Advantages result{.reward_mean = all_.mean, .reward_std = all_.deviation};
    for (int64_t i = 0; i < size(); ++i) {
      if (std::isnan(values_[i])) {
        ++result.num_unscorable;
        continue;
      }
      results[i] = advantage(i);
      without_signal += (batch_deviation ? all_ : group_of(i)).deviation <= 1e-8;
    }
    for (const Moments& group : groups_)
      result.num_unscorable_groups += group.count == 0;
    if (all_.count > 0)
      result.frac_reward_zero_std = static_cast<double>(without_signal) / all_.count;

    // A sample without a score gets advantage 0: it stays in the batch, but its surrogate has no
    // gradient.
    const Moments own = normalize ? moments_of(results.data(), size()) : Moments{};
    result.advantages = at::empty({size()}, at::kFloat);
    float* out = result.advantages.data_ptr<float>();
    for (int64_t i = 0; i < size(); ++i) {
      const double value =
          normalize ? (results[i] - own.mean) / (own.deviation + kDeviationEpsilon) : results[i];
      out[i] = std::isnan(value) ? 0.0f : static_cast<float>(value);
    }
    return result;
  }

 private:
  std::vector<double> values_;
  int64_t num_generations_;
  Moments all_;
  std::vector<Moments> groups_;
};

}  // namespace

Advantages group_advantages(const at::Tensor& rewards, int64_t num_generations,
                            ScaleRewards scale) {
  const Batch batch(rewards, num_generations);
  return batch.finish(scale == ScaleRewards::kBatch, false, [&](int64_t i) {
    const Moments& group = batch.group_of(i);
    const double centred = batch[i] - group.mean;
    if (scale == ScaleRewards::kNone) return centred;
    return centred /
           ((scale == ScaleRewards::kBatch ? batch.all() : group).deviation + kDeviationEpsilon);
  });
}

Advantages decoupled_advantages(const at::Tensor& rewards, const at::Tensor& objectives,
                                const std::vector<double>& weights, int64_t num_generations) {
  const Batch batch(rewards, num_generations);
  const auto count = static_cast<int64_t>(weights.size());
  if (!objectives.defined() || objectives.dim() != 2 || objectives.scalar_type() != at::kDouble ||
      objectives.size(0) != batch.size() || objectives.size(1) != count)
    throw Error(ErrorCode::kInvalidArgument,
                "objectives must be [S, K] float64, for each sample a score of each weight")
        .with("samples", batch.size())
        .with("weights", count);

  // GDPO: each objective is normalised against its own group before they are summed, so that it
  // counts by its weight, however its scores are spread.
  std::vector<double> sums(static_cast<size_t>(batch.size()), 0.0);
  std::vector<bool> differs(static_cast<size_t>(batch.size() / num_generations), false);
  for (int64_t k = 0; k < count; ++k) {
    const Batch objective(objectives.select(1, k).contiguous(), num_generations);
    for (int64_t i = 0; i < batch.size(); ++i) {
      const Moments& group = objective.group_of(i);
      if (std::isnan(objective[i])) continue;
      sums[i] += weights[k] * (objective[i] - group.mean) / (group.deviation + kDeviationEpsilon);
      if (group.deviation > 1e-8) differs[i / num_generations] = true;
    }
  }

  // The batch's own metric looks at the summed reward. Here a sample has a signal if any of its
  // objectives differs within the group, even where the sums are equal.
  Advantages result = batch.finish(true, true, [&](int64_t i) { return sums[i]; });
  int64_t without_signal = 0;
  for (int64_t i = 0; i < batch.size(); ++i)
    without_signal += !std::isnan(batch[i]) && !differs[i / num_generations];
  const int64_t scorable = batch.size() - result.num_unscorable;
  result.frac_reward_zero_std =
      scorable > 0 ? static_cast<double>(without_signal) / static_cast<double>(scorable) : 0;
  return result;
}

Advantages rloo_advantages(const at::Tensor& rewards, int64_t num_generations, bool normalize) {
  const Batch batch(rewards, num_generations);
  return batch.finish(false, normalize, [&](int64_t i) {
    const Moments& group = batch.group_of(i);
    if (group.count < 2) return 0.0;
    return (batch[i] - group.mean) * group.count / (group.count - 1);  // = r - mean of the others
  });
}

Advantages reinforce_plus_plus_advantages(const at::Tensor& rewards, int64_t num_generations,
                                          bool group_baseline) {
  const Batch batch(rewards, num_generations);
  return batch.finish(!group_baseline, true, [&](int64_t i) {
    return group_baseline ? batch[i] - batch.group_of(i).mean : batch[i];
  });
}

}  // namespace retort::losses

#include "recipes/losses/detail/sampled_weights.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace retort::losses::detail {
namespace {

// Stands for the logarithm of no weight: it is finite, and its exponential is 0.
constexpr float kNoLogWeight = -1e4f;

struct Draw {
  int32_t id = 0;
  double weight = 0, log_prob = 0;
};

// Returns a row's draws. With replacement an id that came up several times is one draw with its
// share of the count. Without it each weighs q over the probability that it was drawn at all
// (WeightedIds); a payload that has an id twice all the same keeps both, for whoever refuses it.
std::vector<Draw> draws_of_row(const int32_t* ids, const float* log_probs, int64_t count,
                               const float* kappa) {
  std::vector<Draw> draws;
  for (int64_t i = 0; i < count; ++i) {
    const double log_prob = log_probs[i];
    if (kappa != nullptr) {
      const double inclusion = -std::expm1(-std::exp(log_prob - *kappa));
      draws.push_back({ids[i], std::exp(log_prob) / inclusion, log_prob});
      continue;
    }
    const auto known = std::ranges::find(draws, ids[i], &Draw::id);
    const double share = 1.0 / static_cast<double>(count);
    if (known != draws.end())
      known->weight += share;
    else
      draws.push_back({ids[i], share, log_prob});
  }
  return draws;
}

// Returns the lowest ids that are not among the draws, to fill a row up to K distinct ones.
std::vector<int32_t> other_ids(const std::vector<Draw>& draws, size_t count) {
  std::vector<int32_t> drawn;
  for (const Draw& draw : draws)
    drawn.push_back(draw.id);
  std::ranges::sort(drawn);
  std::vector<int32_t> others;
  for (int32_t id = 0; others.size() < count; ++id)
    if (!std::ranges::binary_search(drawn, id)) others.push_back(id);
  return others;
}

}  // namespace

WeightedIds weigh(const TeacherSampled& signal, int64_t common) {
  const at::Tensor ids = signal.ids.detach().to(at::kCPU).contiguous(),
                   logps = signal.logps.detach().to(at::kCPU, at::kFloat).contiguous();
  at::Tensor kappas;
  if (signal.kappa.defined()) kappas = signal.kappa.detach().to(at::kCPU, at::kFloat).contiguous();
  const int64_t rows = ids.size(0), count = ids.size(1), k = std::min(count, common);

  WeightedIds out{
      .ids = {.ids = at::empty({rows, k}, at::kInt),
              .logps = at::empty({rows, k}, at::kFloat),
              .log_tail = at::full({rows}, -std::numeric_limits<float>::infinity(), at::kFloat)},
      .distinct = at::empty({rows}, at::kLong),
      .scale = at::empty({rows}, at::kDouble),
      .offset = at::empty({rows}, at::kDouble)};
  for (int64_t r = 0; r < rows; ++r) {
    const float* kappa = kappas.defined() ? kappas.const_data_ptr<float>() + r : nullptr;
    std::vector<Draw> draws = draws_of_row(ids.const_data_ptr<int32_t>() + r * count,
                                           logps.const_data_ptr<float>() + r * count, count, kappa);
    // There can be more distinct ids than common ones only if some lie above these, which is
    // refused later.
    draws.resize(std::min(draws.size(), static_cast<size_t>(k)));
    // The loss of top-k takes a distribution, so the weights are normalised row by row; scale and
    // offset bring the estimate back (sampled_weights.h).
    double total = 0;
    for (const Draw& draw : draws)
      total += draw.weight;

    // A weight that has underflowed counts for nothing; in the offset it would be 0 times infinity.
    auto* id = out.ids.ids.mutable_data_ptr<int32_t>() + r * k;
    auto* log_weight = out.ids.logps.mutable_data_ptr<float>() + r * k;
    double offset = 0;
    for (const Draw& draw : draws) {
      const bool counts = draw.weight != 0;
      *log_weight = counts ? static_cast<float>(std::log(draw.weight / total)) : kNoLogWeight;
      if (counts) offset += draw.weight * (draw.log_prob - static_cast<double>(*log_weight));
      *id++ = draw.id;
      ++log_weight;
    }
    for (const int32_t other : other_ids(draws, static_cast<size_t>(k) - draws.size())) {
      *id++ = other;
      *log_weight++ = kNoLogWeight;
    }

    out.distinct.mutable_data_ptr<int64_t>()[r] = static_cast<int64_t>(draws.size());
    out.scale.mutable_data_ptr<double>()[r] = total;
    out.offset.mutable_data_ptr<double>()[r] = offset;
  }
  return out;
}

}  // namespace retort::losses::detail

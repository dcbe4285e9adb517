// The divergences between teacher q and student p with their options, and the names of both in a
// recipe. Formulas: docs/losses.md.
#pragma once

#include <cstdint>

#include "base/options.h"
#include "recipes/losses/divergence_type.h"

namespace retort::losses {

struct DivergenceOptions {
  DivergenceType type = DivergenceType::kForwardKl;
  // jsd: M = beta q + (1-beta) p; exactly 0 / 1 are forward / reverse KL
  double beta = 0.5;
  double skew_lambda = 0.1;   // skewed_kl, skewed_reverse_kl
  double temperature = 1.0;   // divides both sides' logits
  Tail tail = Tail::kBucket;  // top-k only
  bool scale_by_temperature_squared = false;
  // loss = (1-kd_ratio)*CE + kd_ratio*KD; CE at temperature 1 over the student's whole vocabulary
  double kd_ratio = 1.0;
  // ids >= this are -inf on both sides inside the divergence only; 0: no limit
  int64_t common_vocab = 0;
  int64_t chunk_tokens = 0;  // rows formed at once; 0: chosen from sizes alone (never from time)

  void validate() const;  // kInvalidArgument: ranges, renormalize/drop with anything but forward_kl
};

}  // namespace retort::losses

template <>
struct retort::EnumNames<retort::losses::DivergenceType> {
  using E = retort::losses::DivergenceType;
  static constexpr std::array<std::pair<std::string_view, E>, 6> values{
      {{"forward_kl", E::kForwardKl},
       {"reverse_kl", E::kReverseKl},
       {"jsd", E::kJsd},
       {"skewed_kl", E::kSkewedKl},
       {"skewed_reverse_kl", E::kSkewedReverseKl},
       {"tvd", E::kTvd}}};
};
template <>
struct retort::EnumNames<retort::losses::Tail> {
  using E = retort::losses::Tail;
  static constexpr std::array<std::pair<std::string_view, E>, 3> values{
      {{"bucket", E::kBucket}, {"renormalize", E::kRenormalize}, {"drop", E::kDrop}}};
};

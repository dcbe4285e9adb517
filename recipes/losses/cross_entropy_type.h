// The types of cross-entropy, which differ in what a row counts.
#pragma once

#include <array>
#include <string_view>
#include <utility>

#include "base/options.h"

namespace retort::losses {

enum class CrossEntropyType {
  kNll,  // -log p(target)
  // -p(target) log p(target), the factor p without gradient: dynamic fine-tuning (Wu et al.,
  // arXiv 2508.05629; TRL 1.16 SFTConfig.loss_type "dft"). Its gradient by the logits is that of
  // kNll times p, so that what the model finds improbable moves it little.
  kDft
};

}  // namespace retort::losses

template <>
struct retort::EnumNames<retort::losses::CrossEntropyType> {
  using E = retort::losses::CrossEntropyType;
  static constexpr std::array<std::pair<std::string_view, E>, 2> values{
      {{"nll", E::kNll}, {"dft", E::kDft}}};
};

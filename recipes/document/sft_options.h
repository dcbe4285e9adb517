// A recipe's `sft:` block: what a target token counts.
#pragma once

#include "base/options.h"
#include "recipes/losses/cross_entropy_type.h"

namespace retort::recipes {

struct SftOptions {
  losses::CrossEntropyType loss_type = losses::CrossEntropyType::kNll;

  template <class V>
  void fields(V& visit) {
    visit("loss_type", loss_type,
          "what a target token counts; nll: -log p; dft: that times p, which has no gradient, so "
          "that improbable tokens move the student little (dynamic fine-tuning)");
  }
  // Nothing to refuse.
  void validate() const {}
};

}  // namespace retort::recipes

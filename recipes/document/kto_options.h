// A recipe's `kto:` block: which loss over judged completions, and who the reference is.
#pragma once

#include <cstdint>
#include <string>

#include "base/options.h"
#include "recipes/document/reference_options.h"
#include "recipes/losses/kto.h"

namespace retort::recipes {

struct KtoOptions {
  double beta = 0.1;
  losses::KtoLoss loss_type = losses::KtoLoss::kKto;
  double desirable_weight = 1.0;
  double undesirable_weight = 1.0;
  std::string reference = "reference";
  std::string reference_cache = "";
  int64_t prefetch = 2;

  template <class V>
  void fields(V& visit) {
    visit("beta", beta, "strength of the pull towards the reference");
    visit("loss_type", loss_type,
          "what a reward is compared with; kto: the student's distance from the reference on "
          "mismatched completions; apo_zero_unpaired: against 0");
    visit("desirable_weight", desirable_weight, "weight of the loss of rows with label: true");
    visit("undesirable_weight", undesirable_weight, "weight of the loss of rows with label: false");
    visit("reference", reference, "the role whose log-probabilities are compared with");
    visit("reference_cache", reference_cache, kReferenceCacheHelp);
    visit("prefetch", prefetch, kReferencePrefetchHelp);
  }
  // kInvalidArgument naming the field.
  void validate() const;
  losses::KtoLossOptions loss() const;
};

}  // namespace retort::recipes

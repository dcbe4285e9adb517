// A recipe's `dpo:` block: which preference losses, and who the reference is.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/options.h"
#include "recipes/document/reference_options.h"
#include "recipes/losses/preference.h"

namespace retort::recipes {

// A field that the chosen losses do not read must keep its default: anything else is refused, not
// ignored.
struct DpoOptions {
  double beta = 0.1;
  std::vector<losses::PreferenceLoss> loss_type{losses::PreferenceLoss::kSigmoid};
  std::vector<double> loss_weights;
  double label_smoothing = 0.0;
  double simpo_gamma = 0.5;
  double discopop_tau = 0.05;
  losses::FDivergence f_divergence_type = losses::FDivergence::kReverseKl;
  double f_alpha_divergence_coef = 0.5;
  bool use_weighting = false;
  std::optional<double> ld_alpha;
  std::string reference = "reference";
  std::string reference_cache = "";
  int64_t prefetch = 2;

  template <class V>
  void fields(V& visit) {
    visit("beta", beta,
          "strength of the pull towards the reference (orpo: weight of the odds ratio)");
    visit("loss_type", loss_type, "one, or a list whose weighted sum is the loss");
    visit("loss_weights", loss_weights, "one for each loss_type; empty: all 1");
    visit("label_smoothing", label_smoothing,
          "share of pairs that are labelled the wrong way; robust, cdpo, exo_pair, aot and "
          "aot_unpaired only");
    visit("simpo_gamma", simpo_gamma, "target margin; simpo only");
    visit("discopop_tau", discopop_tau,
          "how sharply the loss changes its form where the margin is 0; discopop only");
    visit("f_divergence_type", f_divergence_type,
          "the divergence from the reference that the reward is derived from; losses of the "
          "difference of two rewards only");
    visit("f_alpha_divergence_coef", f_alpha_divergence_coef, "alpha; alpha_divergence only");
    visit("use_weighting", use_weighting,
          "times the loss of a pair how likely its completions are to the student beside what it "
          "would draw (WPO); not of aot, aot_unpaired, simpo, orpo and sft");
    visit("ld_alpha", ld_alpha,
          "what a token of the longer completion beyond the shorter one's length counts, 0 to 1 "
          "(LD-DPO); null: as the others; not of simpo and orpo");
    visit("reference", reference,
          "the role whose log-probabilities are compared with; none is started for simpo, orpo and "
          "sft");
    visit("reference_cache", reference_cache, kReferenceCacheHelp);
    visit("prefetch", prefetch, kReferencePrefetchHelp);
  }
  // kInvalidArgument naming the field.
  void validate() const;
  losses::PreferenceOptions preference() const;
};

}  // namespace retort::recipes

// The formulas of the losses over pairs of completions, each for one pair: docs/losses.md.
#pragma once

#include <algorithm>

#include "recipes/losses/preference.h"

namespace retort::losses::detail {

// One pair's numbers.
struct Pair {
  // log pi - log pi_ref, summed over the tokens; in term_of what score_of makes of it
  double chosen_ratio;
  double rejected_ratio;  // likewise
  double chosen;          // log pi, summed over the tokens
  double rejected;        // likewise
  double chosen_tokens;
  double rejected_tokens;
  // what aot and aot_unpaired compare with (counterparts.h); 0 if no loss reads them
  double margin_counterpart = 0;
  double chosen_counterpart = 0;
  double rejected_counterpart = 0;
};

// The value of one loss and its derivatives with respect to the policy's two sums.
struct Term {
  double value = 0;
  double d_chosen = 0;
  double d_rejected = 0;
};
// The term of `loss`, unweighted, and its derivatives by the ratios as they are given.
// Cross-entropy on the chosen completion (sft, orpo's first term) is not in it: chosen_nll_sum is.
Term term_of(PreferenceLoss loss, const Pair& pair, const PreferenceOptions& options);

// A completion's score and its slope by the log-ratio that it is made of: FDivergence.
struct Score {
  double value = 0;
  double slope = 1;
};
Score score_of(double log_ratio, const PreferenceOptions& options);

// The factor that makes a completion's sum a mean over its tokens; one without any counts as one
// token.
inline double per_token(double tokens) { return 1 / std::max(tokens, 1.0); }

}  // namespace retort::losses::detail

// What a recipe type adds to `retort plan`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "recipes/recipe.h"

namespace retort::recipes {

// What a serving role sends to the student, at most: every token a target.
struct LinkPlan {
  std::string role;
  double bytes_per_token = 0;  // target token
  double bytes_per_step = 0;
  int64_t prefetch = 0;       // steps whose answers may be in flight
  double prefetch_bytes = 0;  // that a rank of the student holds for them
};

struct RecipePlan {
  // Sequences of up to data.max_length that one row of a batch becomes: 2 for a pair.
  int64_t sequences_per_row = 1;
  // Forward passes without gradient, of about as many tokens as a step has, that the student and
  // its frozen roles make besides.
  int64_t extra_forwards = 0;
  std::vector<LinkPlan> links;
};

// Of a micro-batch on one dp rank, at most.
int64_t micro_batch_tokens(const Recipe& recipe, int64_t sequences_per_row);
// Of a step on all ranks, at most.
double tokens_per_step(const Recipe& recipe, int64_t sequences_per_row);

// The link of a role that answers with `bytes_per_token` for each of `tokens` in a step on all
// ranks.
LinkPlan plan_link(const Recipe& recipe, const std::string& role, double bytes_per_token,
                   double tokens, int64_t prefetch);

// The link of a reference, which answers with a log-probability for each target token. `tokens`:
// what it is asked for in a step on all ranks, at most; a run's cache may know the answers.
LinkPlan plan_reference_link(const Recipe& recipe, const std::string& role, double tokens,
                             int64_t prefetch);

}  // namespace retort::recipes

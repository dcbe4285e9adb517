// What a recipe type adds to `retort plan`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/memory/memory_estimate.h"
#include "recipes/document/recipe.h"
#include "roles/payload/payload.h"

namespace retort::recipes {

inline int64_t dtype_bytes(FloatType type) { return type == FloatType::kFloat32 ? 4 : 2; }

// What a serving role sends to the student, at most: every token a target.
struct LinkPlan {
  std::string role;
  double bytes_per_token = 0;  // target token
  double bytes_per_step = 0;
  int64_t prefetch = 0;       // steps whose answers may be in flight
  double prefetch_bytes = 0;  // that a rank of the student holds for them
  // that the student sends beside its tokens: the ids that it names, each tp rank all of them
  double named_bytes_per_token = 0;
  // that a rank of the role keeps, where answers are formed, until the student has named ids
  double kept_bytes = 0;
  roles::PayloadSpec payload;
  // What `retort cache` writes of it: bytes_per_token for each target token of data.train, and
  double cache_bytes_per_sequence = 0;
  double cache_bytes_once = 0;

  bool may_be_kept() const { return cache_bytes_per_sequence > 0; }
};

// A cache of a teacher's payloads that the student reads.
struct CachePlan {
  std::string folder;
  int64_t sequences = 0, target_tokens = 0;
  int64_t bytes = 0;  // of its files but the manifest, by formula
  double bytes_per_token = 0;
  double bytes_per_step = 0;  // read on all ranks: every token a target
};

struct RecipePlan {
  // Sequences of up to data.max_length that one row of a batch becomes: 2 for a pair.
  int64_t sequences_per_row = 1;
  bool forks = false;  // they lie in one sequence, the second as a fork of the first
  // Forward passes without gradient, of about as many tokens as a step has, that the student and
  // its frozen roles make besides.
  int64_t extra_forwards = 0;
  // As many more of the student alone.
  int64_t extra_student_forwards = 0;
  std::vector<LinkPlan> links;
  std::vector<CachePlan> caches;
  models::LossSizes loss;  // but for the answers, which the links have
};

// Returns the tokens of a micro-batch on one dp rank, at most.
int64_t micro_batch_tokens(const Recipe& recipe, int64_t sequences_per_row);
// Its sequences, of data.max_length where they are as long as they may be.
int64_t micro_batch_sequences(const Recipe& recipe, const RecipePlan& plan);
// Returns the tokens of a step on all ranks, at most.
double tokens_per_step(const Recipe& recipe, int64_t sequences_per_row);

// The rows of a step on all ranks, where micro-batches are counted in rows; 0 where in tokens. Not
// an integer, as it may be asked before any number was checked.
double rows_per_step(const Recipe& recipe);

// The link of a role that answers with `bytes_per_token` for each of `tokens` in a step on all
// ranks.
LinkPlan plan_link(const Recipe& recipe, const std::string& role, double bytes_per_token,
                   double tokens, int64_t prefetch);

// The link of a reference, which answers with a log-probability for each target token. `tokens`:
// what it is asked for in a step on all ranks, at most; a run's cache may know the answers.
LinkPlan plan_reference_link(const Recipe& recipe, const std::string& role, double tokens,
                             int64_t prefetch);

}  // namespace retort::recipes

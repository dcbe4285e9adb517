// Problems of two tokenizers for the tests of ULD and GOLD, one call with its gradients, and the
// same by the formulas in float64.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "parallel/vocab_shard.h"
#include "recipes/losses/linear_uld.h"
#include "tests/losses/fixtures.h"

namespace retort::losses {

struct UldProblem {
  Problem both;  // rows and vocabularies of either side have sizes of their own
  at::Tensor teacher_targets;
  std::vector<TokenGroup> groups;
};
// 16 rows of the student and 15 of the teacher in groups of 1:1 (twice), 2:1, 1:3, 2:2 and 3:2
// tokens with unequal weights; on both sides some rows are in no group.
UldProblem random_uld_problem(int64_t vocab, int64_t teacher_vocab, uint64_t seed);
// `count` pairs of ids that no side has in order.
MatchedIds some_matched_ids(const UldProblem& problem, int64_t count, double beta);

struct UldOutcome {
  UldSums sums;
  double loss = 0;
  at::Tensor dh, dw, db;
};
// unread_uld on fresh leaves, then backward.
UldOutcome uld(const UldProblem& problem, const TeacherSignal& signal, const UldOptions& options,
               const parallel::VocabShard& vocab = {});

// Whose distribution a group has, times what the other rows give to their tokens: TRL's "bayesian"
// takes the last row's, its "observed" the first one's.
enum class MergedRow { kLast, kFirst };
// The formulas of docs/losses.md in float64, differentiated by autograd. `k` > 0: the bound of a
// top-k payload.
UldOutcome uld_by_formulas(const UldProblem& problem, const UldOptions& options, int64_t k = 0,
                           MergedRow merged = MergedRow::kLast);

// The numbers of a result beside its gradients, with their names.
std::vector<std::pair<std::string, double>> numbers_of(const UldOutcome& outcome);

}  // namespace retort::losses

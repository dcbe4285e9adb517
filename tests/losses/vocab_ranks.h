// Ranks of a split vocabulary as child processes: a test starts them by the name of a scenario;
// each rank compares its part of a loss with the whole one, which it computes by itself, and exits
// 0, or prints why not and exits 1.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

#include "parallel/vocab_shard.h"
#include "parallel/world.h"
#include "tests/losses/fixtures.h"
#include "tests/support/require.h"

namespace retort::losses::testing {

// In the test: runs `scenario` on that many ranks and expects all of them to succeed.
void expect_ranks_succeed(const std::string& scenario, int64_t ranks);

// In a child: ends it with exit code 1 and this text.
using test::require;
// |mine - whole| / |whole| by norm must not exceed `tolerance`, or both be 0.
void require_near(const at::Tensor& mine, const at::Tensor& whole, double tolerance,
                  const std::string& what);
void require_near(double mine, double whole, double tolerance, const std::string& what);

// This rank's shard of a vocabulary, and its rows of a weight or bias [V, ...] (undefined stays
// so).
parallel::VocabShard shard_of(parallel::Group& group, int64_t total);
at::Tensor own_rows(const at::Tensor& whole, const parallel::VocabShard& vocab);
// The problem with this rank's rows of the student's head; the teacher stays whole.
Problem own_part(const Problem& problem, const parallel::VocabShard& vocab);

// The other way: all ranks' rows of a weight, bias or gradient in float32. One all-reduce.
at::Tensor all_rows(const at::Tensor& own, const parallel::VocabShard& vocab);

// A copy that requires grad, in `dtype`.
at::Tensor leaf(const at::Tensor& tensor, at::ScalarType dtype = at::kFloat);

using Scenario = void (*)(parallel::Group& group);
// Defined by each test program: what expect_ranks_succeed can name.
std::map<std::string, Scenario> scenarios();

}  // namespace retort::losses::testing

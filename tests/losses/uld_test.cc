// ULD and GOLD by their formulas in float64, in chunks and parts, and what they refuse. Parity with
// TRL: uld_trl_test.cc.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "recipes/losses/detail/sorted_distance.h"
#include "tests/losses/uld_cases.h"
#include "tests/support/thrown.h"

namespace retort::losses::across_tokenizers {
namespace {

using test::expect_error;

constexpr double kTolerance = 1e-6;
// Probabilities in float32 of products of several tokens: their exponents have lost a digit.
constexpr double kOfGradients = 2e-6;

void expect_near(const UldOutcome& got, const UldOutcome& expected) {
  const auto a = numbers_of(got), b = numbers_of(expected);
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_NEAR(a[i].second, b[i].second, kTolerance * std::max(std::abs(b[i].second), 1e-3))
        << a[i].first;
  EXPECT_LT(relative_difference(got.dh, expected.dh), kOfGradients);
  EXPECT_LT(relative_difference(got.dw, expected.dw), kOfGradients);
  EXPECT_LT(relative_difference(got.db, expected.db), kOfGradients);
}

// Every switch at least once against the others; the teacher's last ids are names of nothing.
std::vector<UldOptions> every_option(const UldProblem& problem) {
  std::vector<UldOptions> all{{},
                              {.temperature = 2.0, .ce_weight = 0.3},
                              {.normalize = true, .kd_weight = 0.7, .ce_weight = 0.2},
                              {.temperature = 0.7, .normalize = true},
                              {.teacher_ids = problem.both.teacher_weight.size(0) - 3},
                              {.kd_weight = 0, .ce_weight = 1}};
  for (const double beta : {0.0, 0.3, 1.0}) {
    all.push_back({.matched = some_matched_ids(problem, 20, beta)});
    all.push_back({.temperature = 1.5,
                   .normalize = beta == 0.3,
                   .matched = some_matched_ids(problem, 20, beta),
                   .ce_weight = 0.1});
  }
  return all;
}

UldProblem with_named_targets(UldProblem problem, const UldOptions& options) {
  if (options.teacher_ids > 0)
    problem.teacher_targets = problem.teacher_targets.clamp_max(options.teacher_ids - 1);
  return problem;
}

TEST(Uld, EveryOptionByTheFormulas) {
  for (const auto& [vocab, teacher_vocab] : {std::pair<int64_t, int64_t>{31, 45}, {45, 31}}) {
    const UldProblem random = random_uld_problem(vocab, teacher_vocab, 71);
    int n = 0;
    for (const UldOptions& options : every_option(random)) {
      SCOPED_TRACE(std::to_string(vocab) + " ids, options " + std::to_string(n++));
      const UldProblem problem = with_named_targets(random, options);
      const UldOutcome expected = uld_by_formulas(problem, options);
      expect_near(uld(problem, hidden_signal(problem.both), options), expected);
      if (options.teacher_ids > 0) continue;
      expect_near(uld(problem, full_signal(problem.both, options.temperature), options), expected);
    }
  }
}

TEST(Uld, TopKIsABoundAndWithAllIdsTheDistance) {
  for (const auto& [vocab, teacher_vocab] : {std::pair<int64_t, int64_t>{31, 45}, {45, 31}}) {
    const UldProblem problem = random_uld_problem(vocab, teacher_vocab, 72);
    for (const UldOptions& options :
         {UldOptions{}, {.temperature = 2.0, .ce_weight = 0.3}, {.normalize = true}}) {
      const UldOutcome whole = uld_by_formulas(problem, options);
      for (const int64_t k : {int64_t{1}, int64_t{6}, teacher_vocab}) {
        SCOPED_TRACE(std::to_string(vocab) + " ids, k " + std::to_string(k));
        const UldOutcome got =
            uld(problem, top_k_signal(problem.both, options.temperature, k), options);
        expect_near(got, k < teacher_vocab ? uld_by_formulas(problem, options, k) : whole);
        // A bound of each distance where the earlier tokens' product is not bounded itself.
        EXPECT_LE(got.sums.one_to_one_sum, whole.sums.one_to_one_sum * (1 + kTolerance));
      }
    }
  }
}

// The student as its own teacher, with other names for the ids: no distance, and no gradient.
TEST(Uld, OfTheSameDistributionsIsZero) {
  UldProblem problem = random_uld_problem(33, 33, 73);
  problem.both.teacher_hidden = problem.both.hidden.narrow(0, 0, 15);
  problem.both.teacher_weight = problem.both.weight.flip(0).contiguous();
  problem.both.teacher_bias = problem.both.bias.flip(0).contiguous();
  problem.teacher_targets = 32 - problem.both.targets.narrow(0, 0, 15);
  problem.groups = {{0, 1, 0, 1}, {1, 3, 1, 3}, {5, 8, 5, 8}};
  const UldOutcome got = uld(problem, hidden_signal(problem.both), {});
  EXPECT_LT(got.loss, 1e-5);
  EXPECT_GT(uld(problem, hidden_signal(problem.both), {.temperature = 1.0, .ce_weight = 1}).loss,
            1);
}

TEST(Uld, NeitherChunksNorOrderNorPartsMatter) {
  const UldProblem problem = random_uld_problem(31, 45, 74);
  for (UldOptions options : {UldOptions{.ce_weight = 0.2},
                             {.temperature = 2.0, .matched = some_matched_ids(problem, 20, 0.5)}}) {
    const TeacherHidden signal = hidden_signal(problem.both);
    const UldOutcome whole = uld(problem, signal, options);
    for (const int64_t chunk : {1, 3}) {
      options.chunk_tokens = chunk;
      expect_near(uld(problem, signal, options), whole);
    }
    options.chunk_tokens = 0;

    // The groups from the last to the first.
    UldProblem reversed = problem;
    std::reverse(reversed.groups.begin(), reversed.groups.end());
    expect_near(uld(reversed, signal, options), whole);

    // Two calls, each with the rows and groups of a half.
    UldOutcome sum;
    at::Tensor dw;
    for (const auto& [from, to, teacher_from, teacher_to] :
         {std::tuple<int64_t, int64_t, int64_t, int64_t>{0, 6, 0, 6}, {6, 16, 6, 15}}) {
      UldProblem half = problem;
      half.both.hidden = problem.both.hidden.narrow(0, from, to - from);
      half.both.targets = problem.both.targets.narrow(0, from, to - from);
      half.teacher_targets =
          problem.teacher_targets.narrow(0, teacher_from, teacher_to - teacher_from);
      half.groups.clear();
      for (const TokenGroup& g : problem.groups)
        if (g.student_begin >= from && g.student_begin < to)
          half.groups.push_back({g.student_begin - from, g.student_end - from,
                                 g.teacher_begin - teacher_from, g.teacher_end - teacher_from,
                                 g.weight});
      const UldOutcome part =
          uld(half,
              TeacherHidden{signal.hidden.narrow(0, teacher_from, teacher_to - teacher_from),
                            signal.weight, signal.bias},
              options);
      sum.loss += part.loss;
      sum.sums.ce_sum += part.sums.ce_sum;
      dw = dw.defined() ? dw + part.dw : part.dw;
    }
    EXPECT_NEAR(sum.loss, whole.loss, kTolerance * whole.loss);
    EXPECT_NEAR(sum.sums.ce_sum, whole.sums.ce_sum, kTolerance * whole.sums.ce_sum);
    EXPECT_LT(relative_difference(dw, whole.dw), kOfGradients);
  }
}

TEST(Uld, WithoutGroupsRowsOrGradients) {
  UldProblem problem = random_uld_problem(31, 45, 75);
  const TeacherHidden signal = hidden_signal(problem.both);
  const UldOutcome expected = uld_by_formulas(problem, {});
  {
    const at::NoGradGuard no_grad;
    const UnreadUld got =
        unread_uld(problem.both.hidden, problem.both.weight, problem.both.bias,
                   problem.both.targets, signal, problem.teacher_targets, problem.groups, {});
    EXPECT_FALSE(got.loss_sum.requires_grad());
    EXPECT_NEAR(got.loss_sum.item<double>(), expected.loss, kTolerance * expected.loss);
  }

  problem.groups.clear();
  const UldOutcome none = uld(problem, signal, {});
  EXPECT_EQ(none.loss, 0);
  EXPECT_EQ(none.dh.abs().sum().item<double>() + none.dw.abs().sum().item<double>(), 0);
  expect_near(uld(problem, signal, {.ce_weight = 1}), uld_by_formulas(problem, {.ce_weight = 1}));

  problem.both.hidden = problem.both.hidden.narrow(0, 0, 0);
  problem.both.targets = problem.both.targets.narrow(0, 0, 0);
  const UldOutcome empty = uld(problem, signal, {.ce_weight = 1});
  EXPECT_EQ(empty.loss, 0);
  EXPECT_EQ(empty.dw.sizes(), problem.both.weight.sizes());
}

// Ties too: many probabilities of one size, and the same on both sides.
TEST(SortedDistance, TheRadixSortIsLibTorchsSort) {
  const UldProblem problem = random_uld_problem(3001, 2003, 76);
  const at::Tensor logits = at::mm(problem.both.hidden, problem.both.weight.t());
  const at::Tensor other =
      at::mm(problem.both.teacher_hidden, problem.both.teacher_weight.t()).narrow(0, 0, 15);
  for (const double step : {0.0, 0.5, 40.0}) {
    const auto rows = [&](const at::Tensor& z) {
      return at::softmax(step > 0 ? (z.narrow(0, 0, 15) / step).round() * step : z.narrow(0, 0, 15),
                         1);
    };
    const at::Tensor p = rows(logits), q = rows(other);
    const at::Tensor m = at::softmax(logits.narrow(1, 0, 15).narrow(0, 0, 1), 1).flatten();
    const at::Tensor ones = at::ones({15});
    for (const auto& [x, y] : {std::pair<at::Tensor, at::Tensor>{p, q}, {q, p}, {p, p}}) {
      const at::Tensor signs = at::empty_like(x), expected_signs = at::empty_like(x);
      const at::Tensor got = detail::sorted_distance({x, ones}, {y, m}, signs);
      const at::Tensor expected = detail::aten_sorted_distance({x, ones}, {y, m}, expected_signs);
      EXPECT_LT(relative_difference(got, expected), kTolerance);
      EXPECT_TRUE(at::equal(signs, expected_signs));
      EXPECT_TRUE(at::equal(detail::sorted_distance({x, ones}, {y, m}, {}), got));
    }
    EXPECT_EQ(detail::sorted_distance({p, ones}, {p, ones}, {}).sum().item<double>(), 0);
  }
}

TEST(UldRefusals, Groups) {
  const UldProblem problem = random_uld_problem(31, 45, 77);
  const auto refuse = [&](const char* part, const TokenGroup& bad) {
    UldProblem wrong = problem;
    wrong.groups.push_back(bad);
    expect_error(ErrorCode::kInvalidArgument, part,
                 [&] { uld(wrong, hidden_signal(problem.both), {}); });
  };
  refuse("at least one row", {13, 13, 12, 13});
  refuse("side=teacher", {13, 14, 12, 12});
  refuse("at least one row", {14, 13, 12, 13});
  refuse("at least one row", {-1, 1, 12, 13});
  refuse("group=6", {15, 17, 12, 13});
  refuse("side=teacher", {15, 16, 14, 16});
  refuse("share a row", {11, 13, 12, 13});
  refuse("row=10", {12, 13, 10, 12});
  refuse("not negative", {13, 14, 12, 13, -1.0});
  refuse("finite", {13, 14, 12, 13, INFINITY});
}

TEST(UldRefusals, OptionsAndMatchedIds) {
  const UldProblem problem = random_uld_problem(31, 45, 77);
  const auto refuse = [&](const char* part, const UldOptions& options) {
    expect_error(ErrorCode::kInvalidArgument, part,
                 [&] { uld(problem, hidden_signal(problem.both), options); });
  };
  refuse("temperature", {.temperature = 0});
  refuse("teacher_ids", {.teacher_ids = -1});
  refuse("exceeds", {.teacher_ids = 46});
  refuse("target is no id", {.teacher_ids = 1});
  refuse("kd_weight", {.kd_weight = NAN});
  refuse("ce_weight", {.ce_weight = -1});
  refuse("chunk_tokens", {.chunk_tokens = -1});
  const auto refuse_ids = [&](const char* part, const std::function<void(MatchedIds&)>& change) {
    MatchedIds ids = some_matched_ids(problem, 20, 0.5);
    change(ids);
    refuse(part, {.matched = ids});
  };
  refuse_ids("stands twice", [](MatchedIds& ids) { ids.student[3] = ids.student[7]; });
  refuse_ids("side=teacher", [](MatchedIds& ids) { ids.teacher[3] = ids.teacher[7]; });
  refuse_ids("no id", [](MatchedIds& ids) { ids.student[0] = 31; });
  refuse_ids("no id", [](MatchedIds& ids) { ids.teacher[0] = -1; });
  refuse_ids("of one length", [](MatchedIds& ids) { ids.student = ids.student.narrow(0, 0, 3); });
  refuse_ids("int64", [](MatchedIds& ids) { ids.student = ids.student.to(at::kInt); });
  refuse_ids("beta", [](MatchedIds& ids) { ids.beta = 1.1; });
  refuse_ids("matched_weight", [](MatchedIds& ids) { ids.matched_weight = -0.1; });
}

TEST(UldRefusals, PayloadsAndTheirNumbers) {
  UldProblem problem = random_uld_problem(31, 45, 77);
  const TeacherTopK top = top_k_signal(problem.both, 1, 5);
  const auto refuse = [&](ErrorCode code, const char* part, const TeacherSignal& signal,
                          const UldOptions& options = {}) {
    expect_error(code, part, [&] { uld(problem, signal, options); });
  };
  refuse(ErrorCode::kInvalidArgument, "instead of top_k", top,
         {.matched = some_matched_ids(problem, 20, 0.5)});
  refuse(ErrorCode::kInvalidArgument, "instead of sampled",
         TeacherSampled{top.ids, top.logps.to(at::kFloat), {}});
  refuse(ErrorCode::kInvalidArgument, "teacher_targets",
         TeacherFull{full_signal(problem.both, 1).logps.narrow(0, 0, 14)});

  // Rows of a group are looked at, its earlier ones too; those of no group are not.
  const auto damaged = [&](int64_t row) {
    TeacherFull full{full_signal(problem.both, 1).logps.clone()};
    full.logps[row][3] = NAN;
    return full;
  };
  refuse(ErrorCode::kCorrupt, "row=1", damaged(1));
  refuse(ErrorCode::kCorrupt, "row=4", damaged(4));
  uld(problem, damaged(12), {});
  refuse(ErrorCode::kCorrupt, "do not sum to 1",
         TeacherFull{full_signal(problem.both, 1).logps * 2});
  refuse(ErrorCode::kCorrupt, "stands twice",
         TeacherTopK{at::zeros_like(top.ids), top.logps, top.log_tail});
  problem.teacher_targets = problem.teacher_targets.clamp_max(19);
  refuse(ErrorCode::kMismatch, "outside the common vocabulary", top, {.teacher_ids = 20});
  problem.teacher_targets[2] = 45;
  refuse(ErrorCode::kInvalidArgument, "row=2", hidden_signal(problem.both));
}

}  // namespace
}  // namespace retort::losses::across_tokenizers

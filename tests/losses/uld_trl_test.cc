// unread_uld against TRL 1.16.0's ULDLoss (make_uld_goldens.py), from hidden states.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/losses/trl_fixtures.h"
#include "tests/losses/uld_cases.h"

namespace retort::losses::uld_trl {
namespace {

constexpr double kTolerance = 1e-5;

const TrlGoldens& goldens() {
  static const TrlGoldens read = read_trl_goldens("uld_goldens");
  return read;
}

UldProblem problem_of(const TrlRecord& c) {
  const auto tensor = [&](const char* name) {
    return goldens().tensor(c.text("set") + "." + name);
  };
  UldProblem problem;
  problem.both.hidden = tensor("hidden");
  problem.both.weight = tensor("weight");
  problem.both.targets = tensor("targets").to(at::kLong);
  problem.both.teacher_hidden = tensor("teacher_hidden");
  problem.both.teacher_weight = tensor("teacher_weight");
  problem.both.common = problem.both.teacher_weight.size(0);
  problem.teacher_targets = tensor("teacher_targets").to(at::kLong);
  const at::Tensor groups = tensor("groups");
  for (int64_t g = 0; g < groups.size(0); ++g) {
    const float* row = groups.const_data_ptr<float>() + 5 * g;
    const auto place = [&](int i) { return static_cast<int64_t>(row[i]); };
    problem.groups.push_back({place(0), place(1), place(2), place(3), row[4]});
  }
  return problem;
}

UldOptions options_of(const TrlRecord& c) {
  UldOptions options{.temperature = c.number("temperature"), .ce_weight = c.number("ce")};
  if (!c.has("beta")) return options;
  const at::Tensor ids = goldens().tensor(c.text("set") + ".matched").to(at::kLong);
  options.matched = MatchedIds{.student = ids.select(1, 0).contiguous(),
                               .teacher = ids.select(1, 1).contiguous(),
                               .matched_weight = c.number("matched"),
                               .unmatched_weight = c.number("unmatched"),
                               .beta = c.number("beta")};
  return options;
}

void expect_golden(const UldOutcome& got, const TrlRecord& c) {
  EXPECT_NEAR(got.loss, c.number("loss"), kTolerance * c.number("loss"));
  EXPECT_NEAR(got.loss, c.number("loss32"), 2 * kTolerance * c.number("loss"));
  EXPECT_LT(relative_difference(got.dh, goldens().tensor(c.name + ".dh")), kTolerance);
  EXPECT_LT(relative_difference(got.dw, goldens().tensor(c.name + ".dw")), kTolerance);
}

TEST(TrlUld, EveryCaseFromHiddenStatesAndFullDistributions) {
  const auto cases = goldens().of_kind("uld");
  ASSERT_EQ(cases.size(), 24u);
  for (const TrlRecord& c : cases) {
    SCOPED_TRACE(c.name);
    const UldProblem problem = problem_of(c);
    const UldOptions options = options_of(c);
    expect_golden(uld(problem, hidden_signal(problem.both), options), c);
    expect_golden(uld(problem, full_signal(problem.both, options.temperature), options), c);
    expect_golden(uld_by_formulas(problem, options), c);
  }
}

// The first row's distribution in place of the last one's, a wrong temperature, or a left out
// product would be seen.
TEST(TrlUld, AnotherMergeIsDetected) {
  for (const TrlRecord& c : goldens().of_kind("uld")) {
    SCOPED_TRACE(c.name);
    const UldProblem problem = problem_of(c);
    const auto expect_seen = [&](const UldOutcome& wrong) {
      EXPECT_GT(std::abs(wrong.loss - c.number("loss")), 100 * kTolerance * c.number("loss"));
      EXPECT_GT(relative_difference(wrong.dh, goldens().tensor(c.name + ".dh")), 100 * kTolerance);
    };
    UldOptions options = options_of(c);
    expect_seen(uld_by_formulas(problem, options, 0, MergedRow::kFirst));
    options.normalize = true;
    expect_seen(uld(problem, hidden_signal(problem.both), options));
    options = options_of(c);
    options.temperature *= 1.5;
    expect_seen(uld(problem, hidden_signal(problem.both), options));
  }
}

}  // namespace
}  // namespace retort::losses::uld_trl

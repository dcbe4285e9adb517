// The advantages of spans of bytes, by hand, and where both sides have the same tokens.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "recipes/losses/policy.h"
#include "recipes/losses/span_advantages.h"
#include "tests/support/thrown.h"

namespace retort::losses {
namespace {

at::Tensor floats(std::vector<double> values) { return at::tensor(values, at::kFloat); }

TEST(SpanAdvantages, AllTokensOfASpanHaveItsDifference) {
  // Two tokens of the student are three of the teacher; its third token is in no span.
  const auto spans = span_advantages(
      floats({-1, -2, -7, -0.5}), floats({-0.25, -0.5, -1, -2}),
      {{.student_begin = 0, .student_end = 2, .teacher_begin = 0, .teacher_end = 3},
       {.student_begin = 3, .student_end = 4, .teacher_begin = 3, .teacher_end = 4}});
  EXPECT_TRUE(at::equal(spans.tokens, floats({1.25, 1.25, 0, -1.5})));
  EXPECT_DOUBLE_EQ(spans.reverse_kl_sum, -1.25 + 1.5);
}

TEST(SpanAdvantages, OfTheSameTokensAreThoseOfOneTokenizer) {
  constexpr int64_t kRows = 1000;
  const at::Tensor student = -10 * at::rand({kRows}, at::kFloat);
  const at::Tensor teacher = -10 * at::rand({kRows}, at::kFloat);
  std::vector<TokenGroup> each;
  for (int64_t r = 0; r < kRows; ++r)
    each.push_back(
        {.student_begin = r, .student_end = r + 1, .teacher_begin = r, .teacher_end = r + 1});
  EXPECT_TRUE(at::equal(span_advantages(student, teacher, each).tokens,
                        distillation_advantages(student, teacher)))
      << "other bits";
}

TEST(SpanAdvantages, ASpanWithoutRowsIsRefused) {
  const at::Tensor two = floats({-1, -2});
  for (const TokenGroup& wrong : {TokenGroup{0, 0, 0, 1}, TokenGroup{0, 1, 1, 1},
                                  TokenGroup{1, 3, 0, 1}, TokenGroup{0, 1, -1, 1}})
    EXPECT_NE(test::message_of([&] {
                span_advantages(two, two, {wrong});
              }).find("must have rows of both sides, of 2 and 2"),
              std::string::npos);
}

}  // namespace
}  // namespace retort::losses

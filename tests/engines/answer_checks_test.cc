// Answers that cannot be, one field at a time.
#include "engines/probing/answer_checks.h"

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

const DrawRequest kDraw{.prompt = {1}, .how = {.max_new_tokens = 2, .eos_token_ids = {7}}};
const ScoreRequest kScore{.token_ids = {1, 2, 3}, .positions = {0, 1}, .top_k = 2};

Drawn drawn() {
  return {
      .token_ids = {3, 4}, .log_probs = {-1, -2}, .finish_reason = models::FinishReason::kLength};
}

Scored scored() {
  Scored answer;
  answer.given = {-1, -2};
  answer.ids = at::tensor({1, 2, 3, 4}, at::kInt).reshape({2, 2});
  answer.log_probs = at::tensor({-1.0f, -2.0f, -0.5f, -3.0f}).reshape({2, 2});
  return answer;
}

template <class Request, class Answer, class Change>
void expect_corrupt(const std::string& part, const Request& request, Answer answer,
                    Change&& change) {
  check_answer(request, answer, 10);
  change(answer);
  test::expect_error(ErrorCode::kCorrupt, part, [&] { check_answer(request, answer, 10); });
}

TEST(AnswerChecks, Draws) {
  const auto corrupt = [](const std::string& part, auto change) {
    expect_corrupt(part, kDraw, drawn(), change);
  };
  corrupt("has 0 tokens", [](Drawn& a) { a.token_ids.clear(); });
  corrupt("has 3 tokens", [](Drawn& a) { a.token_ids.push_back(1); });
  corrupt("id 10 outside", [](Drawn& a) { a.token_ids[0] = 10; });
  corrupt("id -1 outside", [](Drawn& a) { a.token_ids[0] = -1; });
  corrupt("1 numbers for 2", [](Drawn& a) { a.log_probs.pop_back(); });
  corrupt("not a number", [](Drawn& a) { a.log_probs[1] = NAN; });
  corrupt("above 0", [](Drawn& a) { a.log_probs[1] = 0.1f; });
  corrupt("-inf", [](Drawn& a) { a.log_probs[1] = -INFINITY; });
  corrupt("no end token", [](Drawn& a) { a.finish_reason = models::FinishReason::kEos; });
  corrupt("length after 1", [](Drawn& a) {
    a.token_ids.pop_back();
    a.log_probs.pop_back();
  });
  Drawn without = drawn();
  without.log_probs.clear();
  check_answer(kDraw, without, 10);
}

TEST(AnswerChecks, Scores) {
  const auto corrupt = [](const std::string& part, auto change) {
    expect_corrupt(part, kScore, scored(), change);
  };
  corrupt("1 numbers for 2", [](Scored& a) { a.given.pop_back(); });
  corrupt("given[1] is not a number", [](Scored& a) { a.given[1] = NAN; });
  corrupt("ids is not [2, 2] int32", [](Scored& a) { a.ids = a.ids.to(at::kLong); });
  corrupt("log_probs is not [2, 2]", [](Scored& a) { a.log_probs = a.log_probs.slice(1, 0, 1); });
  corrupt("twice", [](Scored& a) { a.ids[1][0] = 4; });
  corrupt("outside", [](Scored& a) { a.ids[1][0] = 11; });
  corrupt("does not fall", [](Scored& a) { a.log_probs[1][1] = -0.1f; });
  corrupt("sum to", [](Scored& a) { a.log_probs[1][1] = -0.6f; });
  corrupt("above 0", [](Scored& a) { a.log_probs[1][0] = 1.0f; });
}

}  // namespace
}  // namespace retort::engines

// Cross-entropy and log-probabilities of a vocabulary that 2, 3 or 4 ranks share, against the same
// loss on one rank.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "base/error.h"
#include "recipes/losses/linear_cross_entropy.h"
#include "recipes/losses/linear_log_probs.h"
#include "recipes/losses/log_sum_squares.h"
#include "tests/losses/vocab_ranks.h"
#include "tests/support/thrown.h"

namespace retort::losses::testing {
namespace {

struct Got {
  std::vector<double> numbers;
  std::vector<at::Tensor> rows;
  at::Tensor dh, dw, db;
};
using Call = std::function<Got(const at::Tensor& h, const at::Tensor& w, const at::Tensor& b,
                               const at::Tensor& targets, const parallel::VocabShard& vocab)>;

Got run(const Problem& p, at::ScalarType dtype, const Call& call,
        const parallel::VocabShard& vocab) {
  const at::Tensor h = leaf(p.hidden, dtype), w = leaf(p.weight, dtype), b = leaf(p.bias, dtype);
  Got got = call(h, w, b, p.targets, vocab);
  got.dh = h.grad();
  got.dw = w.grad();
  if (b.defined()) got.db = b.grad();
  return got;
}

// All of `call` on this rank's part against the whole.
void compare(parallel::Group& group, const Problem& p, at::ScalarType dtype, const Call& call,
             const std::string& name) {
  const parallel::VocabShard vocab = shard_of(group, p.weight.size(0));
  const Got whole = run(p, dtype, call, {});
  Got mine = run(own_part(p, vocab), dtype, call, vocab);
  const bool exact = dtype == at::kFloat;
  for (size_t i = 0; i < whole.numbers.size(); ++i)
    require_near(mine.numbers[i], whole.numbers[i], 1e-6, name + " number " + std::to_string(i));
  for (size_t i = 0; i < whole.rows.size(); ++i) {
    require_near(mine.rows[i], whole.rows[i], 1e-6, name + " rows " + std::to_string(i));
    const at::Tensor all = group.all_gather(mine.rows[i]);
    for (int r = 1; r < group.size(); ++r)
      require(at::equal(all[r], all[0]), name + ": the same bits on every rank");
  }
  require(mine.dh.scalar_type() == dtype && mine.dw.scalar_type() == dtype, name + " dtypes");
  at::Tensor dh = mine.dh.to(at::kFloat);
  group.all_reduce(dh);
  // In bfloat16 each rank's part is rounded before the sum.
  require_near(dh, whole.dh, exact ? 1e-6 : 6e-3, name + " dH");
  require_near(all_rows(mine.dw, vocab), whole.dw, exact ? 1e-6 : 1e-3, name + " dW");
  if (p.bias.defined())
    require_near(all_rows(mine.db, vocab), whole.db, exact ? 1e-6 : 1e-3, name + " db");
}

Got cross_entropy(const at::Tensor& h, const at::Tensor& w, const at::Tensor& b,
                  const at::Tensor& targets, int64_t chunk, const parallel::VocabShard& vocab,
                  CrossEntropyType type = CrossEntropyType::kNll) {
  const CrossEntropyResult r = linear_cross_entropy(h, w, b, targets, chunk, vocab, 0, type);
  (r.loss_sum * 0.25).backward();
  return {{r.loss_sum.item<double>(), static_cast<double>(r.count), r.entropy_sum,
           static_cast<double>(r.num_correct)}};
}

Got log_probs(const at::Tensor& h, const at::Tensor& w, const at::Tensor& b,
              const at::Tensor& targets, const LogProbsOptions& options,
              const parallel::VocabShard& vocab) {
  const LogProbs got = linear_log_probs(h, w, b, targets, options, vocab);
  const at::Tensor scale = at::sin(at::arange(h.size(0), at::kFloat) + 1);
  at::Tensor loss = (got.log_probs * scale).sum();
  if (options.entropy_gradient) loss = loss + (got.entropy * scale.flip(0)).sum();
  loss.backward();
  Got result{{}, {got.log_probs.detach()}};
  if (options.entropy) result.rows.push_back(got.entropy.detach());
  return result;
}

void every_loss(parallel::Group& group, const Problem& p, at::ScalarType dtype,
                const std::string& name) {
  for (int64_t chunk : {0, 7}) {
    compare(
        group, p, dtype,
        [&](const auto&... args) {
          const auto [h, w, b, t, vocab] = std::tie(args...);
          return cross_entropy(h, w, b, t, chunk, vocab);
        },
        name + " cross_entropy");
    compare(
        group, p, dtype,
        [&](const auto&... args) {
          const auto [h, w, b, t, vocab] = std::tie(args...);
          return cross_entropy(h, w, b, t, chunk, vocab, CrossEntropyType::kDft);
        },
        name + " dft");
    for (double temperature : {1.0, 0.7})
      compare(
          group, p, dtype,
          [&](const auto&... args) {
            const auto [h, w, b, t, vocab] = std::tie(args...);
            return log_probs(h, w, b, t,
                             {.temperature = temperature,
                              .entropy = chunk > 0,
                              .entropy_gradient = chunk > 0 && temperature == 1,
                              .chunk_tokens = chunk},
                             vocab);
          },
          name + " log_probs");
  }
  const parallel::VocabShard vocab = shard_of(group, p.weight.size(0));
  const at::Tensor h = p.hidden.to(dtype);
  const at::Tensor w = p.weight.to(dtype);
  require_near(linear_log_sum_squares(h, own_rows(w, vocab), vocab, /*softcap=*/2, 7),
               linear_log_sum_squares(h, w, {}, /*softcap=*/2), 1e-5, name + " log_sum_squares");
}

void losses_scenario(parallel::Group& group) {
  for (const bool bias : {false, true}) {
    const Problem p = random_problem({.rows = 45,
                                      .vocab = 67,
                                      .width = 12,
                                      .teacher_vocab = 1,
                                      .teacher_width = 1,
                                      .bias = bias},
                                     41);
    every_loss(group, p, at::kFloat, "67 ids");
    every_loss(group, p, at::kBFloat16, "67 ids bfloat16");
  }
  // Ranks with one id, or none.
  every_loss(
      group,
      random_problem(
          {.rows = 9, .vocab = 5, .width = 6, .teacher_vocab = 1, .teacher_width = 1, .bias = true},
          42),
      at::kFloat, "5 ids");
}

// Equal largest logits on two ranks: the lowest id is the prediction, as in the row kernels. And
// logits that are excluded.
void ties_scenario(parallel::Group& group) {
  Problem p = random_problem(
      {.rows = 8, .vocab = 10, .width = 4, .teacher_vocab = 1, .teacher_width = 1, .bias = true},
      43);
  p.weight.zero_();
  p.bias.zero_();
  for (const int64_t id : {3, 4, 9})
    p.bias[id] = 2.0;
  p.targets = at::tensor({3, 4, 9, 0, 3, 9, 4, 3}, at::kLong);
  p.bias[0] = -std::numeric_limits<float>::infinity();
  const parallel::VocabShard vocab = shard_of(group, 10);
  p.targets[3] = 5;
  const Problem own = own_part(p, vocab);
  const CrossEntropyResult whole = linear_cross_entropy(p.hidden, p.weight, p.bias, p.targets);
  const CrossEntropyResult mine =
      linear_cross_entropy(own.hidden, own.weight, own.bias, own.targets, 0, vocab);
  require(whole.num_correct == 3 && mine.num_correct == 3, "ties go to the lowest id");
  require_near(mine.entropy_sum, whole.entropy_sum, 1e-6, "entropy with an excluded id");
  require_near(mine.loss_sum, whole.loss_sum, 1e-6, "loss with an excluded id");
}

void no_rows_scenario(parallel::Group& group) {
  const Problem p = random_problem(
      {.rows = 0, .vocab = 9, .width = 4, .teacher_vocab = 1, .teacher_width = 1, .bias = true},
      44);
  const parallel::VocabShard vocab = shard_of(group, 9);
  const Problem own = own_part(p, vocab);
  for (const bool probabilities : {false, true}) {
    const Got got = run(
        own, at::kFloat,
        [&](const auto&... args) {
          const auto [h, w, b, t, v] = std::tie(args...);
          return probabilities ? log_probs(h, w, b, t, {.entropy = true}, v)
                               : cross_entropy(h, w, b, t, 0, v);
        },
        vocab);
    require(got.dh.sizes() == p.hidden.sizes() && got.dw.sizes() == own.weight.sizes(),
            "no rows: shapes");
    require(got.dw.abs().sum().template item<double>() == 0 &&
                got.db.abs().sum().template item<double>() == 0,
            "no rows: zeros");
  }
}

// What one rank alone finds wrong is thrown on all of them, at once, and the group stays usable.
void refusals_scenario(parallel::Group& group) {
  const Problem p = random_problem(
      {.rows = 6, .vocab = 20, .width = 4, .teacher_vocab = 1, .teacher_width = 1}, 45);
  const parallel::VocabShard vocab = shard_of(group, 20);
  const at::Tensor own = own_rows(p.weight, vocab);
  const auto refused = [&](const char* part, const at::Tensor& weight, const at::Tensor& targets,
                           parallel::VocabShard shard) {
    for (const bool probabilities : {false, true}) {
      const auto e = test::thrown([&] {
        if (probabilities)
          linear_log_probs(p.hidden, weight, {}, targets, {}, shard);
        else
          linear_cross_entropy(p.hidden, weight, {}, targets, 0, shard);
      });
      require(e && e->code() == ErrorCode::kInvalidArgument &&
                  std::string(e->what()).find(part) != std::string::npos,
              std::string(part) + ": " + (e ? e->what() : "nothing"));
    }
  };

  at::Tensor bad = p.targets.clone();
  if (group.rank() == 1) bad[4] = 20;
  refused("row=4", own, bad, vocab);
  refused("weight's rows", group.rank() == 0 ? own.narrow(0, 0, 1) : own, p.targets, vocab);
  refused("weight must be", group.rank() == 1 ? own.narrow(1, 0, 3) : own, p.targets, vocab);
  parallel::VocabShard shifted = vocab;
  shifted.begin += group.rank();
  refused("weight's rows", own, p.targets, shifted);

  linear_cross_entropy(p.hidden, own, {}, p.targets, 0, vocab);
}

// Ranks do all that their number is good for one after the other, as to start them takes longer.
void two_ranks_scenario(parallel::Group& group) {
  losses_scenario(group);
  no_rows_scenario(group);
}

void three_ranks_scenario(parallel::Group& group) {
  losses_scenario(group);
  ties_scenario(group);
  refusals_scenario(group);
}

TEST(VocabParallel, TwoRanksAlsoWithoutRows) { expect_ranks_succeed("two_ranks", 2); }
TEST(VocabParallel, ThreeRanksAlsoWithTiesAndRefusals) { expect_ranks_succeed("three_ranks", 3); }
TEST(VocabParallel, FourRanksOneOfThemEmpty) { expect_ranks_succeed("losses", 4); }

}  // namespace

std::map<std::string, Scenario> scenarios() {
  return {{"losses", losses_scenario},
          {"two_ranks", two_ranks_scenario},
          {"three_ranks", three_ranks_scenario}};
}

}  // namespace retort::losses::testing

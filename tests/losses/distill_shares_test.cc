// Several teachers of the same rows: one pass over the head gives what a call for each would.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "recipes/losses/distill_shares.h"
#include "tests/losses/fixtures.h"
#include "tests/losses/peak_allocation.h"

namespace retort::losses {
namespace {

constexpr int64_t kShareRows = 150, kShareVocab = 97, kFewerIds = 90;

Problem problem_of(uint64_t seed) {
  return random_problem({.rows = kShareRows,
                         .vocab = kShareVocab,
                         .width = 12,
                         .teacher_vocab = kShareVocab,
                         .teacher_width = 20,
                         .bias = true},
                        seed);
}

at::Tensor leaf_of(const at::Tensor& values) { return values.clone().requires_grad_(); }

TeacherTopK rows_of_top_k(const TeacherTopK& all, const at::Tensor& rows) {
  return {all.ids.index_select(0, rows), all.logps.index_select(0, rows),
          all.log_tail.index_select(0, rows)};
}

// Three teachers: one of all rows from hidden states, one of the even rows, one of some of the rest
// over fewer ids.
class Shares : public testing::Test {
 protected:
  Shares() {
    const at::Tensor even = at::arange(0, kShareRows, 2, at::kLong);
    const at::Tensor late = at::arange(101, kShareRows, 2, at::kLong);
    Problem fewer = third_;
    fewer.common = kFewerIds;
    shares_.push_back({.signal = hidden_signal(first_), .weight = 0.25});
    shares_.push_back({.signal = rows_of_top_k(top_k_signal(second_, 1.5, 8), even),
                       .rows = even,
                       .weight = 0.75});
    shares_.push_back({.signal = TeacherFull{full_signal(fewer, 1.5).logps.index_select(0, late)},
                       .rows = late,
                       .weight = 2.0,
                       .common_vocab = kFewerIds});
  }

  // The same by a call of linear_distill() for each.
  Outcome each_alone(const DivergenceOptions& options) const {
    const at::Tensor h = leaf_of(first_.hidden), w = leaf_of(first_.weight);
    const at::Tensor b = leaf_of(first_.bias);
    Outcome outcome;
    at::Tensor sum;
    for (const TeacherShare& share : shares_) {
      const auto own = [&](const at::Tensor& all) {
        return share.rows.defined() ? all.index_select(0, share.rows) : all;
      };
      DivergenceOptions with = options;
      with.common_vocab = share.common_vocab;
      const auto one = linear_distill(own(h), w, b, own(first_.targets), share.signal, with);
      sum = sum.defined() ? sum + one.loss_sum * share.weight : one.loss_sum * share.weight;
      outcome.result.kd_sum += share.weight * one.kd_sum;
      outcome.result.ce_sum += share.weight * one.ce_sum;
      outcome.result.masked_mass_sum += share.weight * one.masked_mass_sum;
    }
    sum.backward();
    outcome.loss = sum.item<double>();
    outcome.dh = h.grad();
    outcome.dw = w.grad();
    outcome.db = b.grad();
    return outcome;
  }

  Outcome at_once(const DivergenceOptions& options) const {
    const at::Tensor h = leaf_of(first_.hidden), w = leaf_of(first_.weight);
    const at::Tensor b = leaf_of(first_.bias);
    const auto got = unread_distill_shares(h, w, b, first_.targets, shares_, options);
    got.loss_sum.backward();
    Outcome outcome;
    outcome.loss = got.loss_sum.item<double>();
    for (size_t i = 0; i < shares_.size(); ++i) {
      const auto sums =
          DistillSums::of(got.numbers.const_data_ptr<double>() + i * DistillSums::kNumbers);
      outcome.result.kd_sum += shares_[i].weight * sums.kd_sum;
      outcome.result.ce_sum += shares_[i].weight * sums.ce_sum;
      outcome.result.masked_mass_sum += shares_[i].weight * sums.masked_mass_sum;
    }
    outcome.dh = h.grad();
    outcome.dw = w.grad();
    outcome.db = b.grad();
    return outcome;
  }

  Problem first_ = problem_of(1), second_ = problem_of(2), third_ = problem_of(3);
  std::vector<TeacherShare> shares_;
};

void expect_same(const Outcome& got, const Outcome& want) {
  EXPECT_NEAR(got.loss, want.loss, 1e-6 * std::abs(want.loss));
  EXPECT_NEAR(got.result.kd_sum, want.result.kd_sum, 1e-6 * want.result.kd_sum);
  EXPECT_NEAR(got.result.ce_sum, want.result.ce_sum, 1e-6 * want.result.ce_sum);
  EXPECT_NEAR(got.result.masked_mass_sum, want.result.masked_mass_sum, 1e-6);
  EXPECT_LT(relative_difference(got.dh, want.dh), 1e-6);
  EXPECT_LT(relative_difference(got.dw, want.dw), 1e-6);
  EXPECT_LT(relative_difference(got.db, want.db), 1e-6);
}

TEST_F(Shares, AreTheSumOfEachAlone) {
  for (const double kd_ratio : {1.0, 0.3})
    for (const int64_t chunk : {0, 64, 7}) {
      SCOPED_TRACE(testing::Message() << "kd_ratio " << kd_ratio << ", chunks of " << chunk);
      const DivergenceOptions options{
          .temperature = 1.5, .kd_ratio = kd_ratio, .chunk_tokens = chunk};
      expect_same(at_once(options), each_alone(options));
    }
}

TEST_F(Shares, AWeightChangesThem) {
  const DivergenceOptions options{.temperature = 1.5};
  const Outcome want = each_alone(options);
  shares_[1].weight = 0.7;
  const Outcome got = at_once(options);
  EXPECT_GT(std::abs(got.loss - want.loss), 1e-3 * want.loss);
  EXPECT_GT(relative_difference(got.dw, want.dw), 1e-3);
}

TEST_F(Shares, OneOfAllRowsHasTheBitsOfACall) {
  shares_.resize(1);
  shares_[0].weight = 1;
  const DivergenceOptions options{.kd_ratio = 0.5};
  const Outcome got = at_once(options), want = each_alone(options);
  EXPECT_EQ(got.loss, want.loss);
  EXPECT_TRUE(got.dw.equal(want.dw));
  EXPECT_TRUE(got.dh.equal(want.dh));
}

TEST_F(Shares, WithoutAGradientAreTheSameLoss) {
  const DivergenceOptions options{.temperature = 1.5, .kd_ratio = 0.3};
  const Outcome want = each_alone(options);
  const at::NoGradGuard no_grad;
  const auto got = unread_distill_shares(first_.hidden, first_.weight, first_.bias, first_.targets,
                                         shares_, options);
  EXPECT_NEAR(got.loss_sum.item<double>(), want.loss, 1e-6 * want.loss);
  EXPECT_FALSE(got.loss_sum.requires_grad());
}

// Of three teachers of all rows the student's side is formed once: no [R, V] matrix exists whole.
TEST_F(Shares, KeepNoWholeMatrix) {
  constexpr int64_t rows = 2048, vocab = 6400;
  const Problem p = random_problem(
      {.rows = rows, .vocab = vocab, .width = 32, .teacher_vocab = vocab, .teacher_width = 48}, 41);
  const std::vector<TeacherShare> three(3, {.signal = hidden_signal(p), .weight = 1.0 / 3});
  const at::Tensor h = leaf_of(p.hidden), w = leaf_of(p.weight);
  const PeakAllocation meter;
  unread_distill_shares(h, w, {}, p.targets, three, {}).loss_sum.backward();
  EXPECT_LT(meter.largest_bytes(), rows * vocab * 4 / 4);
  // 32 MiB for a chunk with all that stands beside it, and the gradients.
  EXPECT_LT(meter.peak_bytes(), (32 << 20) + 4 * (vocab * 32 * 4 + rows * 32 * 4) + (8 << 20));
}

TEST_F(Shares, RefuseWhatCannotBe) {
  const auto refused = [&](const at::Tensor& rows) {
    std::vector<TeacherShare> shares{{.signal = shares_[1].signal, .rows = rows}};
    EXPECT_THROW(unread_distill_shares(first_.hidden, first_.weight, first_.bias, first_.targets,
                                       shares, {}),
                 Error);
  };
  const at::Tensor even = shares_[1].rows;
  refused(even.flip(0));  // not ascending
  refused(even + 2);      // one beyond the last
  refused(even.to(at::kInt));
  refused(even.narrow(0, 0, 3));  // not as many as the signal has
  EXPECT_THROW(
      unread_distill_shares(first_.hidden, first_.weight, first_.bias, first_.targets, {}, {}),
      Error);
}

}  // namespace
}  // namespace retort::losses

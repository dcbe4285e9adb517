// A head of bfloat16 on a device: products of bfloat16 with float32 sums, without a float32 copy of
// the weight. On the stand-in, against the same formulas in float64.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "parallel/grad_buckets.h"
#include "parallel/world.h"
#include "recipes/losses/linear_cross_entropy.h"
#include "recipes/losses/linear_distill.h"
#include "recipes/losses/linear_log_probs.h"
#include "tests/losses/fixtures.h"
#include "tests/losses/stand_in_device.h"

namespace retort::losses {
namespace {

constexpr int64_t kRows = 150, kVocab = 512, kWidth = 64;
// Chunks are smaller than the weight, and there are ten of them.
constexpr int64_t kChunk = 16;
constexpr size_t kWeightBytes = kVocab * kWidth * 4;
// A gradient by the logits is rounded to 8 bits before its products, 2^-9 at most each.
constexpr double kRounded = 2.5e-3;

at::Tensor there(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.to(dtype).detach().to(test::stand_in_device());
}

struct Head {
  at::Tensor hidden, weight;
};

class DeviceHead : public testing::Test {
 protected:
  static Head on_device(const Problem& p, at::ScalarType dtype = at::kBFloat16) {
    return {there(p.hidden, dtype).requires_grad_(),
            there(p.weight, at::kBFloat16).requires_grad_()};
  }
  // What bfloat16 has of them, as float64.
  static Head exact(const Problem& p) {
    const auto rounded = [](const at::Tensor& tensor) {
      return tensor.detach().to(at::kBFloat16).to(at::kDouble).requires_grad_();
    };
    return {rounded(p.hidden), rounded(p.weight)};
  }
  static at::Tensor log_softmax(const at::Tensor& hidden, const at::Tensor& weight) {
    return at::log_softmax(at::mm(hidden, weight.t()), 1);
  }
  static at::Tensor of_targets(const at::Tensor& log_probs, const Problem& p) {
    return log_probs.gather(1, p.targets.unsqueeze(1)).squeeze(1);
  }
  // The gradients of both after backward.
  static void expect_gradients(const Head& got, const Head& want) {
    EXPECT_EQ(got.hidden.grad().scalar_type(), at::kBFloat16);
    EXPECT_EQ(got.weight.grad().scalar_type(), at::kBFloat16);
    EXPECT_LT(relative_difference(got.hidden.grad().cpu(), want.hidden.grad()), kRounded);
    EXPECT_LT(relative_difference(got.weight.grad().cpu(), want.weight.grad()), kRounded);
  }

  const Problem p_ = random_problem({.rows = kRows,
                                     .vocab = kVocab,
                                     .width = kWidth,
                                     .teacher_vocab = kVocab,
                                     .teacher_width = kWidth},
                                    7);
};

TEST_F(DeviceHead, CrossEntropy) {
  const Head head = on_device(p_);
  const test::RecordedBlocks blocks;
  const auto got = linear_cross_entropy(head.hidden, head.weight, {}, p_.targets, kChunk);
  (got.loss_sum * 0.3).backward();
  EXPECT_EQ(blocks.of_at_least(kWeightBytes), 1) << "the sum of dW alone is as large";

  const Head wanted = exact(p_);
  const at::Tensor loss = -of_targets(log_softmax(wanted.hidden, wanted.weight), p_).sum();
  (loss * 0.3).backward();
  EXPECT_NEAR(got.loss_sum.item<double>(), loss.item<double>(), 1e-6 * loss.item<double>());
  expect_gradients(head, wanted);
}

// Gradients in float32, and rounded for products of bfloat16. A few rows of large probability are
// most of them, so that less is averaged away than in cross-entropy.
TEST_F(DeviceHead, Dft) {
  constexpr double kFewRows = 1.5 * kRounded;
  const Head wanted = exact(p_);
  const at::Tensor log_softmaxes = log_softmax(wanted.hidden, wanted.weight);
  const at::Tensor log_probs = of_targets(log_softmaxes, p_);
  const at::Tensor loss = -(log_probs.detach().exp() * log_probs).sum();
  loss.backward();
  const double entropy = -(log_softmaxes.exp() * log_softmaxes).sum().item<double>();

  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    Problem rounded = p_;
    rounded.hidden = p_.hidden.to(at::kBFloat16).to(at::kFloat);
    const Head head = on_device(rounded, dtype);
    const auto got = linear_cross_entropy(head.hidden, head.weight, {}, p_.targets, kChunk, {}, 0,
                                          CrossEntropyType::kDft);
    got.loss_sum.backward();
    EXPECT_NEAR(got.loss_sum.item<double>(), loss.item<double>(), 1e-5 * loss.item<double>());
    EXPECT_NEAR(got.entropy_sum, entropy, 1e-5 * entropy);
    EXPECT_EQ(got.num_correct, log_softmaxes.argmax(1).eq(p_.targets).sum().item<int64_t>());
    const double bound = dtype == at::kFloat ? 1e-5 : kFewRows;
    EXPECT_LT(relative_difference(head.hidden.grad().cpu(), wanted.hidden.grad()), bound);
    EXPECT_LT(relative_difference(head.weight.grad().cpu(), wanted.weight.grad()), kFewRows);
  }
}

// What a weight that has to be converted costs: the number above means something.
TEST_F(DeviceHead, AnotherDtypeOfTheHiddenStatesCopiesTheWeight) {
  const Head head = on_device(p_, at::kFloat);
  const test::RecordedBlocks blocks;
  linear_cross_entropy(head.hidden, head.weight, {}, p_.targets, kChunk).loss_sum.backward();
  EXPECT_EQ(blocks.of_at_least(kWeightBytes), 2);
}

TEST_F(DeviceHead, DistillationFromHiddenStates) {
  const Head head = on_device(p_);
  const TeacherHidden teacher{
      there(p_.teacher_hidden, at::kBFloat16), there(p_.teacher_weight, at::kBFloat16), {}};
  const test::RecordedBlocks blocks;
  const auto got = linear_distill(head.hidden, head.weight, {}, p_.targets, teacher,
                                  {.kd_ratio = 1, .chunk_tokens = kChunk});
  got.loss_sum.backward();
  EXPECT_EQ(blocks.of_at_least(kWeightBytes), 1) << "neither head is copied";

  const Head wanted = exact(p_);
  const at::Tensor q =
      log_softmax(teacher.hidden.cpu().to(at::kDouble), teacher.weight.cpu().to(at::kDouble));
  const at::Tensor loss = (q.exp() * (q - log_softmax(wanted.hidden, wanted.weight))).sum();
  loss.backward();
  EXPECT_NEAR(got.loss_sum.item<double>(), loss.item<double>(), 1e-5 * loss.item<double>());
  expect_gradients(head, wanted);
}

TEST_F(DeviceHead, LogProbabilities) {
  const Head head = on_device(p_);
  const at::Tensor scale = at::sin(at::arange(kRows, at::kFloat));
  const test::RecordedBlocks blocks;
  const LogProbs got =
      linear_log_probs(head.hidden, head.weight, {}, p_.targets, {.chunk_tokens = kChunk});
  EXPECT_EQ(blocks.of_at_least(kWeightBytes), 0);
  (got.log_probs * scale.to(test::stand_in_device())).sum().backward();
  EXPECT_EQ(blocks.of_at_least(kWeightBytes), 1);

  const Head wanted = exact(p_);
  const at::Tensor log_probs = of_targets(log_softmax(wanted.hidden, wanted.weight), p_);
  (log_probs * scale).sum().backward();
  EXPECT_LT(relative_difference(got.log_probs.detach().cpu(), log_probs.detach()), 1e-6);
  expect_gradients(head, wanted);
}

// Where a step adds up the weight's gradients, they are the same numbers, but not rounded on their
// way: no tensor in bfloat16 is made of them.
TEST_F(DeviceHead, TheSumOfGradientsTakesThatOfTheWeight) {
  parallel::World world(parallel::World::Options{.role = "student"});
  struct Case {
    std::function<at::Tensor(const Head&)> loss;
    int64_t blocks = 0;  // in backward, as large as the weight: log-probabilities form dW there
  };
  const std::vector<Case> cases{
      {[&](const Head& head) {
         return linear_cross_entropy(head.hidden, head.weight, {}, p_.targets, kChunk).loss_sum *
                0.3;
       },
       0},
      {[&](const Head& head) {
         return linear_log_probs(head.hidden, head.weight, {}, p_.targets, {.chunk_tokens = kChunk})
             .log_probs.sum();
       },
       1}};
  for (const Case& c : cases) {
    const Head plain = on_device(p_);
    c.loss(plain).backward();

    const Head head = on_device(p_);
    parallel::GradBuckets buckets({{"head", head.weight}}, world.dp(), {});
    // The first gradient of a step takes the place of what is there, and does not read it.
    buckets.main_grad(0).fill_(std::nan(""));
    buckets.begin_step();
    const at::Tensor first = c.loss(head);
    {
      const test::RecordedBlocks blocks;
      first.backward();
      EXPECT_EQ(blocks.of_at_least(kWeightBytes / 2), c.blocks);
    }
    EXPECT_FALSE(head.weight.grad().defined());
    const at::Tensor once = buckets.main_grad(0).cpu();
    EXPECT_TRUE(at::equal(once.to(at::kBFloat16), plain.weight.grad().cpu()));

    c.loss(head).backward();
    EXPECT_LT(relative_difference(buckets.main_grad(0), once * 2), 1e-6);
    buckets.finish();
  }
}

// Targets that lie on the device already, every second number of a longer list.
TEST_F(DeviceHead, TargetsOfAnyStride) {
  const at::Tensor twice =
      at::stack({p_.targets, (p_.targets + 1) % kVocab}, 1).to(test::stand_in_device());
  const at::Tensor targets = twice.select(1, 0);
  ASSERT_FALSE(targets.is_contiguous());

  const Head head = on_device(p_);
  const at::Tensor loss =
      linear_cross_entropy(head.hidden, head.weight, {}, targets, kChunk).loss_sum;
  const LogProbs log_probs =
      linear_log_probs(head.hidden, head.weight, {}, targets, {.chunk_tokens = kChunk});
  const Head wanted = exact(p_);
  const at::Tensor want = of_targets(log_softmax(wanted.hidden, wanted.weight), p_).detach();
  EXPECT_NEAR(loss.item<double>(), -want.sum().item<double>(), 1e-6 * -want.sum().item<double>());
  EXPECT_LT(relative_difference(log_probs.log_probs.detach().cpu(), want), 1e-6);
}

}  // namespace
}  // namespace retort::losses

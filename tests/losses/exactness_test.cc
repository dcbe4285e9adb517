// What must be exact: zero at student == teacher, agreement of the payloads, independence of chunk
// sizes, and autograd's rules.
#include <ATen/Parallel.h>
#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/error.h"
#include "recipes/losses/linear_cross_entropy.h"
#include "recipes/losses/linear_log_probs.h"
#include "tests/losses/fixtures.h"

namespace retort::losses {
namespace {

std::vector<DivergenceOptions> every_loss() {
  using T = DivergenceType;
  std::vector<DivergenceOptions> all;
  for (T type : {T::kForwardKl, T::kReverseKl, T::kJsd, T::kSkewedKl, T::kSkewedReverseKl, T::kTvd})
    all.push_back({.type = type});
  for (double beta : {0.0, 0.01, 0.3, 1.0})
    all.push_back({.type = T::kJsd, .beta = beta});
  for (double lambda : {0.0, 0.9}) {
    all.push_back({.type = T::kSkewedKl, .skew_lambda = lambda});
    all.push_back({.type = T::kSkewedReverseKl, .skew_lambda = lambda});
  }
  return all;
}

std::string describe(const DivergenceOptions& o) {
  return std::string(enum_name(o.type)) + " beta " + std::to_string(o.beta) + " lambda " +
         std::to_string(o.skew_lambda) + " T " + std::to_string(o.temperature);
}

// Mean per row; a vocabulary that is no multiple of any vector length.
constexpr ProblemSizes kSizes{.rows = 70,
                              .vocab = 1003,
                              .width = 24,
                              .teacher_vocab = 1003,
                              .teacher_width = 24,
                              .bias = true};

TEST(Exactness, TeacherEqualsStudentIsZero) {
  const Problem p = self_problem(kSizes, 11);
  const double ce_gradient = distill(p, hidden_signal(p), {.kd_ratio = 0}).dh.norm().item<double>();
  for (DivergenceOptions options : every_loss()) {
    for (double temperature : {1.0, 2.5}) {
      options.temperature = temperature;
      SCOPED_TRACE(describe(options));
      const Outcome hidden = distill(p, hidden_signal(p), options);
      EXPECT_LT(std::abs(hidden.result.kd_sum) / 70, 1e-7);  // the same bits on both sides
      const Outcome full = distill(p, full_signal(p, temperature), options);
      EXPECT_LT(std::abs(full.result.kd_sum) / 70, 1e-6);
      const Outcome top = distill(p, top_k_signal(p, temperature, 64), options);
      EXPECT_LT(std::abs(top.result.kd_sum) / 70, 1e-6);
      EXPECT_LT(std::abs(top.loss) / 70, 1e-6);
      if (options.type == DivergenceType::kTvd) continue;  // its gradient jumps at p = q
      EXPECT_LT(hidden.dh.norm().item<double>(), 1e-6 * ce_gradient);
      EXPECT_LT(full.dh.norm().item<double>(), 1e-5 * ce_gradient);
      EXPECT_LT(top.dh.norm().item<double>(), 1e-5 * ce_gradient);
    }
  }
}

TEST(Exactness, TruncatedTailsAtTeacherEqualsStudent) {
  const Problem p = self_problem(kSizes, 12);
  for (double temperature : {1.0, 2.5}) {
    const TeacherTopK top = top_k_signal(p, temperature, 16);
    const Outcome drop = distill(p, top, {.temperature = temperature, .tail = Tail::kDrop});
    EXPECT_LT(std::abs(drop.result.kd_sum) / 70, 1e-6);
    const Outcome renormalized =
        distill(p, top, {.temperature = temperature, .tail = Tail::kRenormalize});
    const double expected = -top.logps.to(at::kDouble).logsumexp(-1).mean().item<double>();
    EXPECT_GT(expected, 0.05);
    EXPECT_NEAR(renormalized.result.kd_sum / 70, expected, 1e-6);
    EXPECT_GT(drop.dh.norm().item<double>(), 0.1);  // p = q is not their minimum, as documented
  }
}

TEST(Exactness, HiddenFullAndTopKOfEverythingAgree) {
  const Problem p = random_problem({.rows = 40,
                                    .vocab = 517,
                                    .width = 16,
                                    .teacher_vocab = 517,
                                    .teacher_width = 9,
                                    .bias = true},
                                   13);
  for (DivergenceOptions options : every_loss()) {
    options.temperature = 1.7;
    options.kd_ratio = 0.8;
    SCOPED_TRACE(describe(options));
    const Outcome hidden = distill(p, hidden_signal(p), options);
    for (const TeacherSignal& signal :
         {TeacherSignal(full_signal(p, 1.7)), TeacherSignal(top_k_signal(p, 1.7, 517))}) {
      const Outcome other = distill(p, signal, options);
      EXPECT_NEAR(other.loss, hidden.loss, 1e-6 * std::abs(hidden.loss));
      EXPECT_NEAR(other.result.kd_sum, hidden.result.kd_sum, 1e-6 * std::abs(hidden.result.kd_sum));
      EXPECT_LT(relative_difference(other.dh, hidden.dh), 1e-6);
      EXPECT_LT(relative_difference(other.dw, hidden.dw), 1e-6);
      EXPECT_LT(relative_difference(other.db, hidden.db), 1e-6);
    }
  }
}

TEST(Exactness, CoarseNeverExceedsFull) {
  const Problem p = random_problem(
      {.rows = 40, .vocab = 211, .width = 16, .teacher_vocab = 211, .teacher_width = 9}, 14);
  for (DivergenceOptions options : every_loss()) {
    SCOPED_TRACE(describe(options));
    double previous = -1e-6;
    for (int64_t k : {1, 8, 64, 210, 211}) {
      const double kd = distill(p, top_k_signal(p, 1.0, k), options).result.kd_sum;
      EXPECT_GE(kd, previous * (1 - 1e-6));
      previous = kd;
    }
    EXPECT_NEAR(previous, distill(p, hidden_signal(p), options).result.kd_sum, 1e-6 * previous);
  }
}

TEST(Exactness, ChunkSizesAndThreadsDoNotMatter) {
  const Problem p = random_problem({.rows = 150,
                                    .vocab = 301,
                                    .width = 16,
                                    .teacher_vocab = 301,
                                    .teacher_width = 9,
                                    .bias = true},
                                   15);

  DivergenceOptions options{.type = DivergenceType::kJsd, .kd_ratio = 0.7};
  const std::vector<TeacherSignal> signals{hidden_signal(p), full_signal(p, 1.0),
                                           top_k_signal(p, 1.0, 20)};
  for (const TeacherSignal& signal : signals) {
    options.chunk_tokens = 0;
    const Outcome whole = distill(p, signal, options);
    for (int64_t chunk : {1, 7, 64, 149, 1000}) {
      for (int threads : {1, 2}) {
        at::set_num_threads(threads);
        options.chunk_tokens = chunk;
        const Outcome other = distill(p, signal, options);
        at::set_num_threads(1);
        EXPECT_NEAR(other.loss, whole.loss, 1e-6 * whole.loss);
        EXPECT_LT(relative_difference(other.dh, whole.dh), 1e-6);
        EXPECT_LT(relative_difference(other.dw, whole.dw), 1e-6);
        EXPECT_LT(relative_difference(other.db, whole.db), 1e-6);
      }
    }

    // The same call gives the same bits.
    options.chunk_tokens = 0;
    const Outcome again = distill(p, signal, options);
    EXPECT_EQ(again.loss, whole.loss);
    EXPECT_TRUE(again.dw.equal(whole.dw));
  }
}

TEST(Exactness, ExtremeLogitsStayFinite) {
  Problem p = random_problem(
      {.rows = 12, .vocab = 67, .width = 8, .teacher_vocab = 67, .teacher_width = 5}, 16);
  p.hidden = p.hidden * 60;  // gaps of several hundred nats: most probabilities underflow
  p.teacher_hidden = p.teacher_hidden * 60;
  for (DivergenceOptions options : every_loss()) {
    options.kd_ratio = 0.5;
    SCOPED_TRACE(describe(options));
    for (const TeacherSignal& signal :
         {TeacherSignal(hidden_signal(p)), TeacherSignal(top_k_signal(p, 1.0, 5))}) {
      const Outcome got = distill(p, signal, options);
      EXPECT_TRUE(std::isfinite(got.loss));
      EXPECT_TRUE(at::isfinite(got.dh).all().item<bool>());
      EXPECT_TRUE(at::isfinite(got.dw).all().item<bool>());
    }
  }
  // An id that the teacher excludes (-inf) costs nothing in forward KL.
  TeacherFull full = full_signal(p, 1.0);
  full.logps.index_put_({at::full({1}, 3, at::kLong), at::full({1}, 5, at::kLong)}, -INFINITY);
  full.logps.copy_(at::log_softmax(full.logps, -1));
  EXPECT_TRUE(std::isfinite(distill(p, full, {}).loss));
}

TEST(Autograd, ScalesByTheIncomingGradientAndAccumulates) {
  const Problem p = random_problem(
      {.rows = 9, .vocab = 31, .width = 6, .teacher_vocab = 31, .teacher_width = 5}, 17);
  const Outcome one = distill(p, hidden_signal(p), {});
  const at::Tensor h = p.hidden.clone().requires_grad_(), w = p.weight.clone().requires_grad_();
  const at::Tensor loss = linear_distill(h, w, {}, p.targets, hidden_signal(p), {}).loss_sum;
  const at::Tensor scaled = loss * -2.5;
  scaled.backward({}, /*retain_graph=*/true);
  EXPECT_LT(relative_difference(h.grad(), one.dh * -2.5), 1e-6);
  scaled.backward();
  EXPECT_LT(relative_difference(h.grad(), one.dh * -5), 1e-6);
  EXPECT_LT(relative_difference(w.grad(), one.dw * -5), 1e-6);
  // Only what requires a gradient gets one.
  const at::Tensor alone = p.hidden.clone().requires_grad_();
  linear_distill(alone, p.weight, {}, p.targets, hidden_signal(p), {}).loss_sum.backward();
  EXPECT_LT(relative_difference(alone.grad(), one.dh), 1e-7);
  EXPECT_FALSE(p.weight.grad().defined());
}

TEST(Autograd, TiedEmbeddingGetsBothGradients) {
  const Problem p = random_problem(
      {.rows = 9, .vocab = 31, .width = 6, .teacher_vocab = 31, .teacher_width = 5}, 18);
  const at::Tensor inputs = at::arange(9, at::kLong);
  const at::Tensor w = p.weight.clone().requires_grad_();
  linear_cross_entropy(w.index_select(0, inputs), w, {}, p.targets, 4).loss_sum.backward();
  const at::Tensor w64 = p.weight.to(at::kDouble).requires_grad_();
  const at::Tensor logp = at::log_softmax(at::mm(w64.index_select(0, inputs), w64.t()), -1);
  (-logp.gather(1, p.targets.unsqueeze(1)).sum()).backward();
  EXPECT_LT(relative_difference(w.grad(), w64.grad()), 1e-6);
}

TEST(Autograd, NoGradAndInferenceModeFormNoGradient) {
  const Problem p = random_problem(
      {.rows = 9, .vocab = 31, .width = 6, .teacher_vocab = 31, .teacher_width = 5}, 19);
  const Outcome reference = distill(p, hidden_signal(p), {});
  const at::Tensor h = p.hidden.clone().requires_grad_();
  {
    const at::NoGradGuard guard;
    const DistillResult got = linear_distill(h, p.weight, {}, p.targets, hidden_signal(p), {});
    EXPECT_FALSE(got.loss_sum.requires_grad());
    EXPECT_EQ(got.loss_sum.item<double>(), reference.loss);
  }
  const c10::InferenceMode guard;
  const at::Tensor made_here = p.hidden * 1;
  EXPECT_EQ(linear_distill(made_here, p.weight, {}, p.targets, hidden_signal(p), {})
                .loss_sum.item<double>(),
            reference.loss);
}

TEST(Autograd, DoubleBackwardIsRefused) {
  const Problem p = random_problem(
      {.rows = 4, .vocab = 31, .width = 6, .teacher_vocab = 31, .teacher_width = 5}, 20);
  const at::Tensor h = p.hidden.clone().requires_grad_();
  const at::Tensor loss = linear_distill(h, p.weight, {}, p.targets, hidden_signal(p), {}).loss_sum;
  EXPECT_THROW(loss.backward({}, true, /*create_graph=*/true), Error);
}

TEST(Autograd, NoRowsStillReachTheInputs) {
  const Problem p = random_problem(
      {.rows = 0, .vocab = 31, .width = 6, .teacher_vocab = 31, .teacher_width = 5, .bias = true},
      21);
  for (const TeacherSignal& signal :
       {TeacherSignal(hidden_signal(p)), TeacherSignal(full_signal(p, 1)),
        TeacherSignal(
            TeacherTopK{at::empty({0, 4}, at::kInt), at::empty({0, 4}), at::empty({0})})}) {
    const Outcome got = distill(p, signal, {.kd_ratio = 0.5});
    EXPECT_EQ(got.loss, 0);
    EXPECT_EQ(got.result.count, 0);
    ASSERT_TRUE(got.dw.defined() && got.dh.defined() && got.db.defined());
    EXPECT_EQ(got.dw.sizes(), p.weight.sizes());
    EXPECT_EQ(got.dw.abs().max().item<double>(), 0);
  }
  const at::Tensor w = p.weight.clone().requires_grad_();
  const CrossEntropyResult ce = linear_cross_entropy(p.hidden, w, {}, p.targets);
  ce.loss_sum.backward();
  EXPECT_EQ(w.grad().abs().max().item<double>(), 0);
  EXPECT_EQ(linear_log_probs(p.hidden, w, {}, p.targets).log_probs.size(0), 0);
}

TEST(Dtypes, Bfloat16InputsAreComputedInFloat32) {
  const Problem p = random_problem({.rows = 70,
                                    .vocab = 301,
                                    .width = 16,
                                    .teacher_vocab = 301,
                                    .teacher_width = 9,
                                    .bias = true},
                                   22);
  Problem narrow = p;
  for (at::Tensor* t : {&narrow.hidden, &narrow.weight, &narrow.bias, &narrow.teacher_hidden,
                        &narrow.teacher_weight, &narrow.teacher_bias})
    *t = t->to(at::kBFloat16);
  Problem rounded = narrow;  // the same numbers in float32
  for (at::Tensor* t : {&rounded.hidden, &rounded.weight, &rounded.bias, &rounded.teacher_hidden,
                        &rounded.teacher_weight, &rounded.teacher_bias})
    *t = t->to(at::kFloat);
  const DivergenceOptions options{.kd_ratio = 0.6, .chunk_tokens = 32};
  const Outcome got = distill(narrow, hidden_signal(narrow), options),
                expected = distill(rounded, hidden_signal(rounded), options);
  EXPECT_EQ(got.loss, expected.loss);
  EXPECT_EQ(got.dh.scalar_type(), at::kBFloat16);
  EXPECT_EQ(got.dw.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(got.dh.equal(expected.dh.to(at::kBFloat16)));
  EXPECT_TRUE(got.dw.equal(expected.dw.to(at::kBFloat16)));  // accumulated in float32, rounded once
  EXPECT_TRUE(got.db.equal(expected.db.to(at::kBFloat16)));
  // bf16 inputs do differ
  EXPECT_GT(std::abs(got.loss - distill(p, hidden_signal(p), options).loss), 1e-4);

  TeacherTopK top = top_k_signal(rounded, 1.0, 32);
  const Outcome wide = distill(rounded, top, options);
  top.logps = top.logps.to(at::kBFloat16);
  EXPECT_NEAR(distill(rounded, top, options).loss, wide.loss, 5e-3 * wide.loss);
}

// Of a model that is sure of its targets: gradients that float16 has no numbers for, unless the
// loss scale comes before they are rounded.
TEST(Dtypes, Float16GradientsAreRoundedAfterTheLossScale) {
  constexpr double kLossScale = 1 << 20;
  Problem p = random_problem(
      {.rows = 70, .vocab = 40, .width = 64, .teacher_vocab = 40, .teacher_width = 9}, 23);
  p.hidden = 13 * p.weight.index_select(0, p.targets) / p.weight.square().sum(1).mean().sqrt();
  p.hidden = p.hidden.to(at::kHalf);
  p.weight = (2 * p.weight / p.weight.square().sum(1).mean().sqrt()).to(at::kHalf);

  const auto gradients = [&](at::ScalarType dtype) {
    const at::Tensor h = p.hidden.to(dtype).clone().requires_grad_();
    const at::Tensor w = p.weight.to(dtype).clone().requires_grad_();
    (linear_cross_entropy(h, w, {}, p.targets).loss_sum * kLossScale).backward();
    const at::Tensor logps = linear_log_probs(h, w, {}, p.targets).log_probs;
    const at::Tensor hidden = h.grad().clone();
    h.mutable_grad().reset();
    (logps.sum() * -kLossScale).backward();
    return std::vector<at::Tensor>{hidden, h.grad()};
  };
  const std::vector<at::Tensor> got = gradients(at::kHalf), wide = gradients(at::kFloat);
  const at::Tensor unscaled = (wide[0] / kLossScale).to(at::kHalf);
  EXPECT_GT((unscaled == 0).sum().item<int64_t>(), unscaled.numel() / 10) << "none would be lost";
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].scalar_type(), at::kHalf);
    EXPECT_TRUE(got[i].equal(wide[i].to(at::kHalf))) << i;
    EXPECT_LT((got[i] == 0).sum().item<int64_t>(), got[i].numel() / 100) << i;
  }
}

}  // namespace
}  // namespace retort::losses

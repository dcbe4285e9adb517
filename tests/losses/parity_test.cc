// Losses and gradients against PyTorch's autograd over whole matrices (make_goldens.py), and wrong
// formulas against the same numbers: a tolerance that a bug would pass is no test.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "recipes/losses/linear_cross_entropy.h"
#include "recipes/losses/linear_log_probs.h"
#include "tests/losses/fixtures.h"

namespace retort::losses {
namespace {

constexpr double kTolerance = 1e-5;

const Goldens& goldens() {
  static const Goldens read = read_goldens();
  return read;
}

void expect_golden(const GoldenCase& c, const Outcome& got, const char* payload) {
  SCOPED_TRACE(c.name + " " + payload + " " + std::string(enum_name(c.options.type)));
  EXPECT_NEAR(got.loss, c.loss_sum, kTolerance * std::abs(c.loss_sum));
  EXPECT_NEAR(got.loss, c.loss32, 2 * kTolerance * std::abs(c.loss_sum));
  EXPECT_NEAR(got.result.kd_sum, c.kd, kTolerance * std::abs(c.kd));
  EXPECT_NEAR(got.result.ce_sum, c.ce, kTolerance * std::abs(c.ce));
  EXPECT_EQ(got.result.count, c.dh.size(0));
  EXPECT_LT(relative_difference(got.dh, c.dh), kTolerance);
  EXPECT_LT(relative_difference(got.dw, c.dw), kTolerance);
  if (c.db.defined()) {
    EXPECT_LT(relative_difference(got.db, c.db), kTolerance);
  }
}

TEST(Parity, EveryDivergenceByEveryPayload) {
  ASSERT_GE(goldens().cases.size(), 150u);
  for (const GoldenCase& c : goldens().cases) {
    const Problem& p = goldens().sets.at(c.set);
    DivergenceOptions options = c.options;
    for (int64_t chunk : {0, 4}) {  // 4: several chunks and a shorter last one
      options.chunk_tokens = chunk;
      if (c.k > 0) {
        expect_golden(c, distill(p, top_k_signal(p, options.temperature, c.k), options), "topk");
        continue;
      }
      expect_golden(c, distill(p, hidden_signal(p), options), "hidden");
      expect_golden(c, distill(p, full_signal(p, options.temperature), options), "full");
      expect_golden(c, distill(p, top_k_signal(p, options.temperature, p.common), options),
                    "topk with K = V");
    }
  }
}

TEST(Parity, CrossEntropyIsTheKdRatioZeroCase) {
  const Problem& p = goldens().sets.at("b");
  const at::Tensor h = p.hidden.clone().requires_grad_(), w = p.weight.clone().requires_grad_(),
                   b = p.bias.clone().requires_grad_();
  const CrossEntropyResult got = linear_cross_entropy(h, w, b, p.targets, 4);
  got.loss_sum.backward();

  const auto as_leaf = [](const at::Tensor& t) { return t.to(at::kDouble).requires_grad_(); };
  const at::Tensor h64 = as_leaf(p.hidden), w64 = as_leaf(p.weight), b64 = as_leaf(p.bias);
  const at::Tensor logp = at::log_softmax(at::addmm(b64, h64, w64.t()), -1);
  const at::Tensor picked = logp.gather(1, p.targets.unsqueeze(1)).squeeze(1);
  (-picked.sum()).backward();
  EXPECT_NEAR(got.loss_sum.item<double>(), -picked.sum().item<double>(), 1e-5);
  EXPECT_NEAR(got.entropy_sum, -(logp.exp() * logp).sum().item<double>(), 1e-5);
  EXPECT_EQ(got.num_correct, logp.argmax(-1).eq(p.targets).sum().item<int64_t>());
  EXPECT_EQ(got.count, 11);
  EXPECT_LT(relative_difference(h.grad(), h64.grad()), 1e-6);
  EXPECT_LT(relative_difference(w.grad(), w64.grad()), 1e-6);
  EXPECT_LT(relative_difference(b.grad(), b64.grad()), 1e-6);
  const at::Tensor log_probs = linear_log_probs(h, w, b, p.targets, {.chunk_tokens = 3}).log_probs;
  EXPECT_LT(relative_difference(log_probs, picked), 1e-6);

  DivergenceOptions options{.kd_ratio = 0, .common_vocab = p.common};
  const Outcome mixed = distill(p, hidden_signal(p), options);
  EXPECT_NEAR(mixed.loss, -picked.sum().item<double>(), 1e-5);
  EXPECT_LT(relative_difference(mixed.dw, w64.grad()), 1e-6);
}

// TRL 1.16's dft: the probability is a factor without gradient.
TEST(Parity, DftWeighsARowByItsProbability) {
  const Problem& p = goldens().sets.at("b");
  const at::Tensor h = p.hidden.clone().requires_grad_(), w = p.weight.clone().requires_grad_(),
                   b = p.bias.clone().requires_grad_();
  const CrossEntropyResult got =
      linear_cross_entropy(h, w, b, p.targets, 4, {}, 0, CrossEntropyType::kDft);
  got.loss_sum.backward();

  const auto as_leaf = [](const at::Tensor& t) { return t.to(at::kDouble).requires_grad_(); };
  const at::Tensor h64 = as_leaf(p.hidden), w64 = as_leaf(p.weight), b64 = as_leaf(p.bias);
  const at::Tensor logp = at::log_softmax(at::addmm(b64, h64, w64.t()), -1);
  const at::Tensor picked = logp.gather(1, p.targets.unsqueeze(1)).squeeze(1);
  const at::Tensor loss = -(picked.detach().exp() * picked).sum();
  loss.backward();
  EXPECT_GT(std::abs(loss.item<double>() + picked.sum().item<double>()), 1);
  EXPECT_NEAR(got.loss_sum.item<double>(), loss.item<double>(), 1e-5);
  EXPECT_NEAR(got.entropy_sum, -(logp.exp() * logp).sum().item<double>(), 1e-5);
  EXPECT_EQ(got.num_correct, logp.argmax(-1).eq(p.targets).sum().item<int64_t>());
  EXPECT_EQ(got.count, 11);
  EXPECT_LT(relative_difference(h.grad(), h64.grad()), 1e-6);
  EXPECT_LT(relative_difference(w.grad(), w64.grad()), 1e-6);
  EXPECT_LT(relative_difference(b.grad(), b64.grad()), 1e-6);
}

TEST(Parity, MetricsOfTheDistributions) {
  const Problem& p = goldens().sets.at("b");  // 33 common ids; the teacher has 45, the student 37
  DivergenceOptions options{.temperature = 1.5, .common_vocab = p.common};
  const at::Tensor logits =
      at::addmm(p.teacher_bias, p.teacher_hidden, p.teacher_weight.t()).to(at::kDouble) / 1.5;
  const double masked = at::softmax(logits, -1).narrow(1, 33, 12).sum().item<double>();
  const DistillResult hidden = distill(p, hidden_signal(p), options).result;
  EXPECT_NEAR(hidden.masked_mass_sum, masked, 1e-5);
  EXPECT_NEAR(hidden.teacher_mass_sum, 11, 1e-12);

  const TeacherTopK top = top_k_signal(p, 1.5, 5);
  const DistillResult coarse = distill(p, top, options).result;
  EXPECT_NEAR(coarse.teacher_mass_sum, top.logps.to(at::kDouble).exp().sum().item<double>(), 1e-5);
  const at::Tensor student =
      at::addmm(p.bias, p.hidden, p.weight.t()).to(at::kDouble).narrow(1, 0, 33) / 1.5;
  EXPECT_NEAR(coarse.student_mass_sum,
              at::softmax(student, -1).gather(1, top.ids.to(at::kLong)).sum().item<double>(), 1e-5);
  EXPECT_EQ(coarse.masked_mass_sum, 0);
}

// ---- wrong formulas must not pass ----

void expect_detected(const GoldenCase& c, const Outcome& wrong) {
  SCOPED_TRACE(c.name);
  EXPECT_GT(std::abs(wrong.loss - c.loss_sum), 100 * kTolerance * std::abs(c.loss_sum));
  EXPECT_GT(relative_difference(wrong.dh, c.dh), 100 * kTolerance);
  EXPECT_GT(relative_difference(wrong.dw, c.dw), 100 * kTolerance);
}

TEST(Mutation, SwappedDirectionIsDetected) {
  int detected = 0;
  for (const GoldenCase& c : goldens().cases) {
    if (c.options.type != DivergenceType::kForwardKl || c.options.tail != Tail::kBucket || c.k > 0)
      continue;
    const Problem& p = goldens().sets.at(c.set);
    DivergenceOptions options = c.options;
    options.type = DivergenceType::kReverseKl;
    expect_detected(c, distill(p, hidden_signal(p), options));
    ++detected;
  }
  EXPECT_GE(detected, 4);
}

TEST(Mutation, MissingTemperatureIsDetected) {
  int detected = 0;
  for (const GoldenCase& c : goldens().cases) {
    if (c.options.temperature == 1 || c.k > 0 || c.options.tail != Tail::kBucket) continue;
    const Problem& p = goldens().sets.at(c.set);
    DivergenceOptions options = c.options;
    options.temperature = 1;
    // on both sides
    expect_detected(c, distill(p, hidden_signal(p), options));
    // on the student's side
    expect_detected(c, distill(p, full_signal(p, c.options.temperature), options));
    ++detected;
  }
  EXPECT_GE(detected, 20);
}

TEST(Mutation, ReversedBetaAndSkewAreDetected) {
  int detected = 0;
  for (const GoldenCase& c : goldens().cases) {
    if (c.k > 0) continue;
    const Problem& p = goldens().sets.at(c.set);
    DivergenceOptions options = c.options;
    if (c.options.type == DivergenceType::kJsd && c.options.beta != 0.5)
      options.beta = 1 - options.beta;
    else if (c.options.type == DivergenceType::kSkewedKl)
      options.skew_lambda = 1 - options.skew_lambda;
    else
      continue;
    // Their values nearly agree (jsd is almost symmetric); the gradients do not.
    const Outcome wrong = distill(p, hidden_signal(p), options);
    EXPECT_GT(relative_difference(wrong.dh, c.dh), 100 * kTolerance) << c.name;
    EXPECT_GT(relative_difference(wrong.dw, c.dw), 100 * kTolerance) << c.name;
    ++detected;
  }
  EXPECT_GE(detected, 10);
}

TEST(Mutation, WrongTailIsDetected) {
  for (const GoldenCase& c : goldens().cases) {
    if (c.k == 0 || c.k == 37 || c.options.type != DivergenceType::kForwardKl) continue;
    const Problem& p = goldens().sets.at(c.set);
    for (Tail tail : {Tail::kBucket, Tail::kRenormalize, Tail::kDrop}) {
      if (tail == c.options.tail) continue;
      DivergenceOptions options = c.options;
      options.tail = tail;
      expect_detected(c, distill(p, top_k_signal(p, options.temperature, c.k), options));
    }
  }
}

// One side's first 4 ids hold all but ~1e-6 of the mass: log(1 - sum) in float32 keeps a digit of
// the rest, or none. Reverse KL asks for the teacher's tail, forward KL for the student's.
at::Tensor coarse(const at::Tensor& logits, bool naive) {
  const at::Tensor logp = at::log_softmax(logits.to(at::kDouble), -1);
  const at::Tensor top = logp.narrow(1, 0, 4);
  const at::Tensor tail =
      naive ? (1 - top.to(at::kFloat).exp().sum(-1, true)).clamp_min(1e-7).log().to(at::kDouble)
            : logp.narrow(1, 4, logits.size(1) - 4).logsumexp(-1, true);
  return at::cat({top, tail}, 1);
}
double forward_kl(const at::Tensor& lq, const at::Tensor& lp) {
  return (lq.exp() * (lq - lp)).sum().item<double>();
}

TEST(Mutation, LogOfOneMinusSumIsDetected) {
  constexpr int64_t kRows = 16, kVocab = 50;
  const at::Tensor targets = at::zeros({kRows}, at::kLong), identity = at::eye(kVocab, at::kFloat);
  const at::Tensor ids = at::arange(4, at::kInt).repeat({kRows, 1});
  for (bool peaked_student : {false, true}) {
    SCOPED_TRACE(peaked_student);
    auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
    const at::Tensor teacher = at::randn({kRows, kVocab}, generator, at::kFloat);
    const at::Tensor student = at::randn({kRows, kVocab}, generator, at::kFloat);
    (peaked_student ? student : teacher).narrow(1, 0, 4).add_(16);
    const DivergenceOptions options{.type = peaked_student ? DivergenceType::kForwardKl
                                                           : DivergenceType::kReverseKl};
    const auto loss = [&](const at::Tensor& lq) {
      const TeacherTopK signal{ids, lq.narrow(1, 0, 4).to(at::kFloat),
                               lq.select(1, 4).to(at::kFloat)};
      return linear_distill(student, identity, {}, targets, signal, options).kd_sum;
    };
    const at::Tensor lq = coarse(teacher, false), lp = coarse(student, false);
    const double exact = peaked_student ? forward_kl(lq, lp) : forward_kl(lp, lq);
    EXPECT_NEAR(loss(lq), exact, kTolerance * exact);
    const double naive =
        peaked_student ? forward_kl(lq, coarse(student, true)) : loss(coarse(teacher, true));
    EXPECT_GT(std::abs(naive - exact), 10 * kTolerance * exact);
  }
}

}  // namespace
}  // namespace retort::losses

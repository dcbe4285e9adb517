// Capped logits (Gemma 2) in every loss with a linear head, by row kernels and by operators,
// against autograd over whole matrices in float64: values, and the gradients of hidden, weight and
// bias.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sin.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "base/error.h"
#include "recipes/losses/detail/aten_losses.h"
#include "recipes/losses/distill_shares.h"
#include "recipes/losses/linear_log_probs.h"
#include "tests/losses/fixtures.h"
#include "tests/support/thrown.h"

namespace retort::losses {
namespace {

// Where tanh is far from its argument for many logits.
constexpr double kCap = 1.5;
constexpr int64_t kTaughtFrom = 20;  // the first row of the second teacher

Problem capped_problem() {
  return random_problem({.rows = 70,
                         .vocab = 130,
                         .width = 24,
                         .teacher_vocab = 130,
                         .teacher_width = 16,
                         .bias = true},
                        5);
}

// A loss of hidden, weight and bias.
using Loss = std::function<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&)>;

struct Values {
  double loss = 0;
  at::Tensor dh, dw, db;
};

Values values_of(const Problem& p, at::ScalarType dtype, const Loss& loss) {
  const auto leaf = [&](const at::Tensor& t) {
    return t.detach().to(dtype, false, true).requires_grad_();
  };
  const at::Tensor h = leaf(p.hidden), w = leaf(p.weight), b = leaf(p.bias);
  const at::Tensor sum = loss(h, w, b);
  sum.backward();
  return {sum.item<double>(), h.grad(), w.grad(), b.grad()};
}

// The largest relative difference of two of them.
double difference(const Values& got, const Values& want) {
  return std::max({std::abs(got.loss - want.loss) / std::abs(want.loss),
                   relative_difference(got.dh, want.dh), relative_difference(got.dw, want.dw),
                   relative_difference(got.db, want.db)});
}

at::Tensor log_softmax_of(const at::Tensor& h, const at::Tensor& w, const at::Tensor& b,
                          double temperature = 1) {
  const at::Tensor logits = kCap * (at::mm(h, w.t()) / kCap).tanh() + b;
  return at::log_softmax(logits / temperature, -1);
}

at::Tensor row_factors(int64_t rows, at::ScalarType dtype) {
  return at::sin(at::arange(rows, dtype) + 1);
}

// One loss: as a whole matrix, and as the two ways compute it with a softcap.
struct Case {
  std::string name;
  Loss textbook;
  std::function<Loss(double softcap)> kernels, operators;
};

Case cross_entropy(const Problem& p) {
  return {"cross-entropy",
          [&](auto& h, auto& w, auto& b) {
            return -log_softmax_of(h, w, b).gather(1, p.targets.unsqueeze(1)).sum();
          },
          [&](double cap) {
            return [&p, cap](auto& h, auto& w, auto& b) {
              return unread_cross_entropy(h, w, b, p.targets, 0, {}, cap).loss_sum;
            };
          },
          [&](double cap) {
            return [&p, cap](auto& h, auto& w, auto& b) {
              return detail::aten_cross_entropy(h, w, b, p.targets, 0, {}, cap).loss_sum;
            };
          }};
}

// With a temperature, which divides what is capped; `entropy`: of which the loss has a part.
Case log_probs(const Problem& p, bool entropy) {
  const LogProbsOptions options{
      .temperature = 0.8, .entropy = entropy, .entropy_gradient = entropy, .chunk_tokens = 32};
  const auto sum = [entropy](const LogProbs& rows) {
    const at::Tensor factors = row_factors(rows.log_probs.size(0), rows.log_probs.scalar_type());
    const at::Tensor loss = (rows.log_probs * factors).sum();
    return entropy ? loss + (rows.entropy * factors).sum() : loss;
  };
  return {
      entropy ? "log-probabilities and entropy" : "log-probabilities",
      [&p, sum](auto& h, auto& w, auto& b) {
        const at::Tensor all = log_softmax_of(h, w, b, 0.8);
        return sum({all.gather(1, p.targets.unsqueeze(1)).squeeze(1), -(all.exp() * all).sum(-1)});
      },
      [&p, sum, options](double cap) {
        return [&p, sum, options, cap](auto& h, auto& w, auto& b) {
          return sum(linear_log_probs(h, w, b, p.targets, options, {}, cap));
        };
      },
      [&p, sum, options](double cap) {
        return [&p, sum, options, cap](auto& h, auto& w, auto& b) {
          return sum(detail::aten_log_probs(h, w, b, p.targets, options, {}, cap));
        };
      }};
}

// Reverse KL from all of a teacher's log-probabilities; by kernels in two shares, of all rows and
// of the last ones.
Case distillation(const Problem& p, const TeacherFull& teacher) {
  const DivergenceOptions options{.type = DivergenceType::kReverseKl, .kd_ratio = 1};
  const int64_t rows = p.hidden.size(0), taught = rows - kTaughtFrom;
  const TeacherFull second{teacher.logps.narrow(0, kTaughtFrom, taught)};
  const auto divergence = [](const at::Tensor& p, const at::Tensor& q) {
    return (p.exp() * (p - q)).sum();
  };
  return {
      "distillation",
      [=, &teacher](auto& h, auto& w, auto& b) {
        const at::Tensor p = log_softmax_of(h, w, b), q = teacher.logps.to(at::kDouble);
        const auto last = [=](const at::Tensor& t) { return t.narrow(0, kTaughtFrom, taught); };
        return divergence(p, q) + 0.5 * divergence(last(p), last(q));
      },
      [=, &p, &teacher](double cap) {
        return [=, &p, &teacher](auto& h, auto& w, auto& b) {
          const std::vector<TeacherShare> shares{
              {.signal = teacher},
              {.signal = second, .rows = at::arange(kTaughtFrom, rows, at::kLong), .weight = 0.5}};
          return unread_distill_shares(h, w, b, p.targets, shares, options, {}, cap).loss_sum;
        };
      },
      [=, &p, &teacher](double cap) {
        return [=, &p, &teacher](auto& h, auto& w, auto& b) {
          const auto last = h.narrow(0, kTaughtFrom, taught);
          const auto targets = p.targets.narrow(0, kTaughtFrom, taught);
          const UnreadDistill all =
              detail::aten_distill(h, w, b, p.targets, teacher, options, {}, cap);
          return all.loss_sum +
                 0.5 * detail::aten_distill(last, w, b, targets, second, options, {}, cap).loss_sum;
        };
      }};
}

TEST(Softcap, IsInEveryLossAndItsGradients) {
  const Problem p = capped_problem();
  const TeacherFull teacher = full_signal(p, 1);
  for (const Case& c :
       {cross_entropy(p), log_probs(p, false), log_probs(p, true), distillation(p, teacher)}) {
    SCOPED_TRACE(c.name);
    const Values want = values_of(p, at::kDouble, c.textbook);
    EXPECT_LE(difference(values_of(p, at::kFloat, c.kernels(kCap)), want), 1e-5);
    EXPECT_LE(difference(values_of(p, at::kFloat, c.operators(kCap)), want), 1e-5);

    // Another cap, and none, are something else.
    for (const double other : {1.02 * kCap, 0.0}) {
      EXPECT_GT(difference(values_of(p, at::kFloat, c.kernels(other)), want), 1e-3) << other;
      EXPECT_GT(difference(values_of(p, at::kFloat, c.operators(other)), want), 1e-3) << other;
    }
  }
}

TEST(Softcap, IsRefusedUnlessANumber) {
  const Problem p = capped_problem();
  for (const double bad :
       {-1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()})
    test::expect_error(ErrorCode::kInvalidArgument, "softcap must be 0", [&] {
      linear_cross_entropy(p.hidden, p.weight, p.bias, p.targets, 0, {}, bad);
    });
}

}  // namespace
}  // namespace retort::losses

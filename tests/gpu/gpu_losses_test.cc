// The losses and a teacher's payloads on a device against the CPU: values and gradients, in fp32
// and bf16.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sin.h>
#include <gtest/gtest.h>

#include "recipes/losses/linear_cross_entropy.h"
#include "recipes/losses/linear_log_probs.h"
#include "recipes/losses/policy.h"
#include "recipes/losses/preference.h"
#include "roles/payload/payload.h"
#include "roles/payload/top_k.h"
#include "tests/gpu/device_under_test.h"
#include "tests/losses/distill_cases.h"
#include "tests/support/relative_difference.h"

namespace retort::losses {
namespace {

using test::kMayBeZero;
using test::relative_difference;

at::Tensor there(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.detach().to(gpu_testing::device_number()) : tensor;
}
at::Tensor leaf(const at::Tensor& tensor, at::ScalarType dtype, bool device) {
  if (!tensor.defined()) return tensor;
  const at::Tensor copy = tensor.detach().to(dtype, false, true);
  return (device ? there(copy) : copy).requires_grad_();
}

// What a loss makes of a head, here or there.
struct Head {
  Head(const Problem& p, at::ScalarType dtype, bool device)
      : hidden(leaf(p.hidden, dtype, device)),
        weight(leaf(p.weight, dtype, device)),
        bias(leaf(p.bias, dtype, device)) {}
  at::Tensor hidden, weight, bias;
};
void expect_gradients(const Head& got, const Head& expected, double tolerance) {
  EXPECT_EQ(got.hidden.grad().device(), gpu_testing::device_number());
  EXPECT_LT(relative_difference(got.hidden.grad(), expected.hidden.grad(), kMayBeZero), tolerance);
  EXPECT_LT(relative_difference(got.weight.grad(), expected.weight.grad(), kMayBeZero), tolerance);
  if (got.bias.defined()) {
    EXPECT_LT(relative_difference(got.bias.grad(), expected.bias.grad(), kMayBeZero), tolerance);
  }
}

struct Precision {
  at::ScalarType dtype;
  double tolerance;
};
constexpr Precision kPrecisions[] = {{at::kFloat, 1e-4}, {at::kBFloat16, 1e-2}};

Problem without_teacher(uint64_t seed) {
  return random_problem({.rows = 700,
                         .vocab = 5003,
                         .width = 48,
                         .teacher_vocab = 1,
                         .teacher_width = 1,
                         .bias = true},
                        seed);
}

TEST(GpuLosses, EveryDivergenceTailAndPayload) {
  RETORT_NEEDS_DEVICES(1);
  const DistillCases all = distill_cases();
  for (const Precision& precision : kPrecisions)
    for (const DistillCase& c : all.cases) {
      SCOPED_TRACE(c.name);
      const Problem& p = all.problems[c.problem];
      const Head host(p, precision.dtype, false), device(p, precision.dtype, true);
      const DistillResult expected =
          linear_distill(host.hidden, host.weight, host.bias, p.targets, c.signal, c.options);
      // The signal from the host, as it comes over the wire.
      const DistillResult got =
          linear_distill(device.hidden, device.weight, device.bias, p.targets, c.signal, c.options);
      EXPECT_LT(relative_difference(got.loss_sum, expected.loss_sum, kMayBeZero),
                precision.tolerance);
      EXPECT_NEAR(got.teacher_mass_sum, expected.teacher_mass_sum,
                  1e-4 * expected.teacher_mass_sum);
      expected.loss_sum.backward();
      got.loss_sum.backward();
      expect_gradients(device, host, precision.tolerance);
    }
}

TEST(GpuLosses, CrossEntropyAndLogProbabilities) {
  RETORT_NEEDS_DEVICES(1);
  const Problem p = without_teacher(61);
  const at::Tensor scale = at::sin(at::arange(700, at::kFloat));
  for (const Precision& precision : kPrecisions)
    for (const bool host_targets : {true, false}) {
      // Targets may come from the host, as they do in a run, or lie on the device.
      const Head host(p, precision.dtype, false), device(p, precision.dtype, true);
      const at::Tensor targets = host_targets ? p.targets : there(p.targets);

      // In rows whose two best logits are nearly equal, rounding may choose another one.
      const CrossEntropyResult expected =
          linear_cross_entropy(host.hidden, host.weight, host.bias, p.targets);
      const CrossEntropyResult got =
          linear_cross_entropy(device.hidden, device.weight, device.bias, targets, 256);
      EXPECT_LT(relative_difference(got.loss_sum, expected.loss_sum, kMayBeZero),
                precision.tolerance);
      EXPECT_NEAR(static_cast<double>(got.num_correct), static_cast<double>(expected.num_correct),
                  2);

      // The same rows as a policy asks for them: at a temperature, and with their entropy.
      const LogProbsOptions options{.temperature = 0.7, .entropy = true};
      const LogProbs rows =
          linear_log_probs(host.hidden, host.weight, host.bias, p.targets, options);
      const LogProbs mine =
          linear_log_probs(device.hidden, device.weight, device.bias, targets, options);
      EXPECT_LT(relative_difference(mine.log_probs, rows.log_probs, kMayBeZero),
                precision.tolerance);
      EXPECT_LT(relative_difference(mine.entropy, rows.entropy, kMayBeZero), precision.tolerance);

      // One backward for both, each row with a weight of its own.
      (expected.loss_sum + (rows.log_probs * scale).sum()).backward();
      (got.loss_sum + (mine.log_probs * there(scale)).sum()).backward();
      expect_gradients(device, host, precision.tolerance);
    }
}

TEST(GpuLosses, Dft) {
  RETORT_NEEDS_DEVICES(1);
  const Problem p = without_teacher(62);
  for (const Precision& precision : kPrecisions) {
    const Head host(p, precision.dtype, false), device(p, precision.dtype, true);
    const CrossEntropyType type = CrossEntropyType::kDft;
    const CrossEntropyResult expected =
        linear_cross_entropy(host.hidden, host.weight, host.bias, p.targets, 0, {}, 0, type);
    const CrossEntropyResult got = linear_cross_entropy(device.hidden, device.weight, device.bias,
                                                        p.targets, 256, {}, 0, type);
    EXPECT_LT(relative_difference(got.loss_sum, expected.loss_sum, kMayBeZero),
              precision.tolerance);
    expected.loss_sum.backward();
    got.loss_sum.backward();
    expect_gradients(device, host, precision.tolerance);
  }
}

TEST(GpuLosses, PreferencesAndPolicyGradients) {
  RETORT_NEEDS_DEVICES(1);
  const at::Tensor a = -at::arange(1, 9, at::kFloat), b = a.flip(0), counts = at::full({8}, 4.0f);
  const auto preference = [&](bool device) {
    const auto put = [&](const at::Tensor& t) { return device ? there(t) : t; };
    const at::Tensor chosen = leaf(a, at::kFloat, device), rejected = leaf(b, at::kFloat, device);
    preference_loss({chosen, rejected, put(b), put(a), put(counts), put(counts)}, {})
        .loss_sum.backward();
    return at::cat({chosen.grad(), rejected.grad()}).cpu();
  };
  EXPECT_TRUE(at::equal(preference(true), preference(false)));

  const auto policy = [&](bool device) {
    const auto put = [&](const at::Tensor& t) { return device ? there(t) : t; };
    PolicyInputs in;
    in.policy_logps = leaf(a, at::kFloat, device);
    in.old_logps = put(a * 1.05);
    in.sequence_of_row = put(at::arange(8, at::kLong).remainder(2));
    in.advantages = put(counts.narrow(0, 0, 2));
    in.num_sequences = 2;
    policy_loss(in, {}).loss_sum.backward();
    return in.policy_logps.grad().cpu();
  };
  EXPECT_TRUE(at::equal(policy(true), policy(false)));
}

class GpuPayload : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(GpuPayload, AgreesWithTheCpu) {
  RETORT_NEEDS_DEVICES(1);
  using roles::PayloadKind;
  const Problem p = random_problem(
      {.rows = 200, .vocab = 3001, .width = 32, .teacher_vocab = 1, .teacher_width = 1}, 71);
  const at::Tensor hidden = p.hidden.to(GetParam()), weight = p.weight.to(GetParam());
  for (const roles::PayloadSpec& spec :
       std::vector<roles::PayloadSpec>{{.kind = PayloadKind::kTopK, .top_k = 64},
                                       {.kind = PayloadKind::kTopK, .common_vocab = 2900},
                                       {.kind = PayloadKind::kFull, .temperature = 2.0},
                                       {.kind = PayloadKind::kTargetLogProbs},
                                       {.kind = PayloadKind::kHiddenStates}}) {
    SCOPED_TRACE(std::string(enum_name(spec.kind)));
    const roles::Payload expected = make_payload(hidden, weight, spec, p.targets);
    const roles::Payload got = make_payload(there(hidden), there(weight), spec, p.targets);

    // A payload goes over the wire, so that all of it is on the host.
    const auto compare = [](const at::Tensor& a, const at::Tensor& b) {
      ASSERT_EQ(a.defined(), b.defined());
      if (!a.defined()) return;
      EXPECT_TRUE(a.is_cpu());
      EXPECT_LT(relative_difference(a, b, kMayBeZero), 1e-4);
    };
    compare(got.hidden, expected.hidden);
    compare(got.logps, expected.logps);
    compare(got.log_tail, expected.log_tail);

    // Neighbours whose logits differ by rounding may change places.
    if (got.ids.defined()) {
      EXPECT_GT((got.ids == expected.ids).to(at::kFloat).mean().item<float>(), 0.99f);
    }
    EXPECT_NEAR(got.masked_mass_sum, expected.masked_mass_sum, 1e-4 * expected.masked_mass_sum);
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, GpuPayload, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

// The same values on both sides: no rounding, so the same order.
TEST(GpuTopK, TiesAreOrderedAlike) {
  RETORT_NEEDS_DEVICES(1);
  const at::Tensor values =
      (at::arange(50 * 4000) * 7919).remainder(97).view({50, 4000}).to(at::kFloat);
  for (const int64_t k : {1, 64, 1000, 4000}) {
    const auto [top, ids] = roles::top_k(there(values), k);
    const auto [expected_top, expected_ids] = roles::top_k(values, k);
    EXPECT_TRUE(at::equal(top.cpu(), expected_top));
    EXPECT_TRUE(at::equal(ids.cpu(), expected_ids));
  }
}

}  // namespace
}  // namespace retort::losses

int main(int argc, char** argv) {
  retort::gpu_testing::find_device();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

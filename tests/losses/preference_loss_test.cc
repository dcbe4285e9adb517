// The preference losses by themselves: gradients against finite differences, extremes, batches in
// parts, refusals.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "base/error.h"
#include "recipes/losses/counterparts.h"
#include "recipes/losses/preference.h"
#include "tests/support/thrown.h"

namespace retort::losses::preference {
namespace {

using test::expect_refused;

at::Tensor vector(std::vector<float> values) { return at::tensor(values, at::kFloat); }

bool reads_smoothing(PreferenceLoss loss) {
  using Loss = PreferenceLoss;
  return loss == Loss::kRobust || loss == Loss::kCdpo || loss == Loss::kExoPair ||
         loss == Loss::kAot || loss == Loss::kAotUnpaired;
}

// The pairs as the one global batch.
PreferenceInputs& add_counterparts(PreferenceInputs& in, const PreferenceOptions& options) {
  if (needs_counterparts(options))
    in.counterparts = counterparts(in.policy_chosen, in.policy_rejected, in.reference_chosen,
                                   in.reference_rejected);
  return in;
}

PreferenceOptions one(PreferenceLoss loss) {
  PreferenceOptions options{.loss_type = {loss}, .beta = 0.5};
  if (reads_smoothing(loss)) options.label_smoothing = 0.1;
  return options;
}

std::vector<PreferenceLoss> all_losses() {
  std::vector<PreferenceLoss> losses;
  for (const auto& [name, loss] : EnumNames<PreferenceLoss>::values)
    losses.push_back(loss);
  return losses;
}

PreferenceInputs example(bool reference) {
  PreferenceInputs in{vector({-12.5f, -3.25f, -40, -7}),
                      vector({-11, -6.5f, -38, -7}),
                      {},
                      {},
                      vector({5, 2, 9, 4}),
                      vector({3, 4, 8, 4}),
                      {}};
  if (reference) {
    in.reference_chosen = vector({-13, -3, -36, -8});
    in.reference_rejected = vector({-10.5f, -7, -41, -8});
  }
  return in;
}

struct Gradients {
  double value;
  at::Tensor chosen, rejected;
};
Gradients evaluate(PreferenceInputs in, const PreferenceOptions& options) {
  in.policy_chosen = in.policy_chosen.clone().requires_grad_();
  in.policy_rejected = in.policy_rejected.clone().requires_grad_();
  const PreferenceResult r = preference_loss(add_counterparts(in, options), options);
  const at::Tensor loss = r.loss_sum + 0.1 * r.chosen_nll_sum;
  loss.backward();
  return {loss.item<double>(), in.policy_chosen.grad(), in.policy_rejected.grad()};
}

TEST(PreferenceLoss, GradientsAreThoseOfTheValue) {
  for (PreferenceLoss loss : all_losses()) {
    SCOPED_TRACE(enum_name(loss));
    const PreferenceOptions options = one(loss);
    const PreferenceInputs in = example(needs_reference(options));
    const Gradients exact = evaluate(in, options);
    for (bool chosen : {true, false})
      for (int64_t i = 0; i < 4; ++i) {
        const float step = 1.0f / 64;
        const auto at_offset = [&](float by) {
          PreferenceInputs moved = in;
          at::Tensor& side = chosen ? moved.policy_chosen : moved.policy_rejected;
          side = side.clone();
          side[i] += by;
          return evaluate(moved, options).value;
        };
        const double slope = (at_offset(step) - at_offset(-step)) / (2 * step);
        EXPECT_NEAR((chosen ? exact.chosen : exact.rejected)[i].item<double>(), slope,
                    2e-3 + 2e-3 * std::abs(slope));
      }
  }
}

TEST(PreferenceLoss, FiniteAtExtremes) {
  const float huge = 1e6f;
  for (PreferenceLoss loss : all_losses()) {
    SCOPED_TRACE(enum_name(loss));
    const PreferenceOptions options = one(loss);
    for (const auto& [chosen, rejected] : std::vector<std::pair<float, float>>{{-huge, 0.0f},
                                                                               {0.0f, -huge},
                                                                               {0.0f, 0.0f},
                                                                               {-huge, -huge},
                                                                               {-1e-9f, -1e-9f},
                                                                               {-1e-38f, -huge},
                                                                               {1e-6f, -3.0f}}) {
      PreferenceInputs in{vector({chosen}), vector({rejected}), {}, {},
                          vector({3}),      vector({2}),        {}};
      if (needs_reference(options)) in.reference_chosen = in.reference_rejected = vector({-2});
      const Gradients got = evaluate(in, options);
      EXPECT_TRUE(std::isfinite(got.value)) << chosen << " " << rejected;
      EXPECT_TRUE(got.chosen.isfinite().all().item<bool>()) << chosen << " " << rejected;
      EXPECT_TRUE(got.rejected.isfinite().all().item<bool>()) << chosen << " " << rejected;
    }
  }
}

TEST(PreferenceLoss, NanInIsNanOut) {
  for (PreferenceLoss loss : all_losses()) {
    const PreferenceOptions options = one(loss);
    PreferenceInputs in = example(needs_reference(options));
    in.policy_chosen[2] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(evaluate(in, options).value)) << enum_name(loss);
  }
}

TEST(PreferenceLoss, EqualCompletionsHaveNoMargin) {
  PreferenceInputs in = example(true);
  in.policy_rejected = in.policy_chosen;
  in.reference_rejected = in.reference_chosen;
  const PreferenceResult r = preference_loss(in, {});
  EXPECT_NEAR(r.loss_sum.item<double>(), 4 * std::log(2.0), 1e-6);
  EXPECT_EQ(r.rewards_margins_sum, 0);
  EXPECT_EQ(r.rewards_accuracies_sum, 0);
}

TEST(PreferenceLoss, PartsOfABatchAddUp) {
  const PreferenceOptions options{
      .loss_type = {PreferenceLoss::kIpo, PreferenceLoss::kOrpo, PreferenceLoss::kSft},
      .loss_weights = {1, 0.5, 2}};
  const PreferenceInputs whole = example(true);
  const auto part = [&](int64_t begin, int64_t size) {
    const auto cut = [&](const at::Tensor& t) { return t.narrow(0, begin, size); };
    return preference_loss({cut(whole.policy_chosen),
                            cut(whole.policy_rejected),
                            cut(whole.reference_chosen),
                            cut(whole.reference_rejected),
                            cut(whole.chosen_tokens),
                            cut(whole.rejected_tokens),
                            {}},
                           options);
  };
  const PreferenceResult all = preference_loss(whole, options), first = part(0, 1),
                         rest = part(1, 3), none = part(0, 0);
  EXPECT_NEAR(all.loss_sum.item<double>(),
              (first.loss_sum + rest.loss_sum + none.loss_sum).item<double>(), 1e-5);
  EXPECT_NEAR(all.chosen_nll_sum.item<double>(),
              (first.chosen_nll_sum + rest.chosen_nll_sum).item<double>(), 1e-5);
  EXPECT_EQ(all.chosen_tokens, first.chosen_tokens + rest.chosen_tokens + none.chosen_tokens);
  EXPECT_EQ(all.count, first.count + rest.count + none.count);
  EXPECT_NEAR(all.rewards_margins_sum, first.rewards_margins_sum + rest.rewards_margins_sum, 1e-9);
}

// 1 is the second of (4, 1, -2) by size, so its counterpart is the second of the others.
TEST(PreferenceLoss, CounterpartsHaveTheSamePlace) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor zeros = vector({0, 0, 0});
  const at::Tensor found = counterparts(vector({4, 1, -2}), zeros, vector({-1, -5, -3}), zeros);
  EXPECT_TRUE(found[0].equal(at::tensor({-1.0, -3.0, -5.0}, at::kDouble))) << found;
  // s of the chosen: 5, 6, 1; of the rejected: all 0
  EXPECT_TRUE(found[1].equal(at::tensor({0.0, 0.0, 0.0}, at::kDouble))) << found;
  EXPECT_TRUE(found[2].equal(at::tensor({1.0, 5.0, 6.0}, at::kDouble))) << found;

  const at::Tensor last = counterparts(vector({nan, 1, -2}), zeros, vector({-1, -5, -3}), zeros);
  EXPECT_TRUE(last[0].equal(at::tensor({-1.0, -3.0, -5.0}, at::kDouble))) << last;
}

// A batch that is cut has one sorting: the parts take their columns of it.
TEST(PreferenceLoss, PartsOfASortedBatchAddUp) {
  const PreferenceOptions options{
      .loss_type = {PreferenceLoss::kAot, PreferenceLoss::kAotUnpaired, PreferenceLoss::kSigmoid},
      .loss_weights = {1, 0.5, 2},
      .label_smoothing = 0.2};
  PreferenceInputs whole = example(true);
  add_counterparts(whole, options);
  const auto part = [&](int64_t begin, int64_t size, bool sorted_alone) {
    const auto cut = [&](const at::Tensor& t) { return t.narrow(-1, begin, size); };
    PreferenceInputs in{cut(whole.policy_chosen),    cut(whole.policy_rejected),
                        cut(whole.reference_chosen), cut(whole.reference_rejected),
                        cut(whole.chosen_tokens),    cut(whole.rejected_tokens),
                        cut(whole.counterparts)};
    if (sorted_alone) add_counterparts(in, options);
    return preference_loss(in, options).loss_sum.item<double>();
  };
  const double all = preference_loss(whole, options).loss_sum.item<double>();
  EXPECT_NEAR(part(0, 1, false) + part(1, 3, false), all, 1e-5);
  EXPECT_GT(std::abs(part(0, 1, true) + part(1, 3, true) - all), 5e-3);
}

TEST(PreferenceLoss, NoPairsStillReachThePolicy) {
  const at::Tensor empty = at::empty({0}, at::kFloat);
  const at::Tensor chosen = at::empty({0}, at::kFloat).requires_grad_(),
                   rejected = at::empty({0}, at::kFloat).requires_grad_();
  const PreferenceResult r =
      preference_loss({chosen, rejected, empty, empty, empty, empty, {}}, {});
  (r.loss_sum + r.chosen_nll_sum).backward();
  EXPECT_EQ(r.loss_sum.item<double>(), 0);
  EXPECT_EQ(chosen.grad().size(0), 0);
  EXPECT_EQ(rejected.grad().size(0), 0);
}

TEST(PreferenceRefusals, OptionsWithoutEffect) {
  using Loss = PreferenceLoss;
  for (Loss loss : all_losses()) {
    if (reads_smoothing(loss)) continue;
    expect_refused("aot and aot_unpaired read it", [&] {
      PreferenceOptions{.loss_type = {loss}, .label_smoothing = 0.1}.validate();
    });
  }
  expect_refused("only loss_type simpo reads it",
                 [] { PreferenceOptions{.simpo_gamma = 1.0}.validate(); });
  expect_refused("only loss_type discopop reads it",
                 [] { PreferenceOptions{.discopop_tau = 0.1}.validate(); });
  expect_refused("with loss_type cdpo",
                 [] { PreferenceOptions{.loss_type = {Loss::kCdpo}}.validate(); });
  expect_refused("with loss_type exo_pair",
                 [] { PreferenceOptions{.loss_type = {Loss::kExoPair}}.validate(); });
  expect_refused("none of the losses reads them", [] {
    preference_loss(example(true), {.loss_type = {Loss::kSimpo, Loss::kSft}});
  });
}

TEST(PreferenceRefusals, Ranges) {
  using Loss = PreferenceLoss;
  expect_refused("beta", [] { PreferenceOptions{.beta = 0}.validate(); });
  expect_refused("beta", [] { PreferenceOptions{.beta = NAN}.validate(); });
  expect_refused("label_smoothing", [] {
    PreferenceOptions{.loss_type = {Loss::kRobust}, .label_smoothing = 0.5}.validate();
  });
  expect_refused("label_smoothing", [] {
    PreferenceOptions{.loss_type = {Loss::kCdpo}, .label_smoothing = -0.1}.validate();
  });
  expect_refused("simpo_gamma", [] {
    PreferenceOptions{.loss_type = {Loss::kSimpo}, .simpo_gamma = -1}.validate();
  });
  expect_refused("discopop_tau", [] {
    PreferenceOptions{.loss_type = {Loss::kDiscopop}, .discopop_tau = 0}.validate();
  });
  expect_refused("at least one", [] { PreferenceOptions{.loss_type = {}}.validate(); });
  expect_refused("twice", [] {
    PreferenceOptions{.loss_type = {Loss::kIpo, Loss::kIpo}}.validate();
  });
  expect_refused("one weight for each", [] {
    PreferenceOptions{.loss_weights = {1, 2}}.validate();
  });
  expect_refused("must be positive", [] { PreferenceOptions{.loss_weights = {0}}.validate(); });
  EXPECT_NO_THROW(
      (PreferenceOptions{.loss_type = {Loss::kSigmoid, Loss::kRobust}, .label_smoothing = 0.1}
           .validate()));
}

TEST(PreferenceRefusals, Inputs) {
  PreferenceInputs in = example(false);
  expect_refused("reference_chosen is missing", [&] { preference_loss(in, {}); });
  in = example(true);
  in.rejected_tokens = vector({1, 2, 3});
  expect_refused("rejected_tokens must be a vector of 4", [&] { preference_loss(in, {}); });
  in = example(true);
  in.policy_rejected = in.policy_rejected.to(at::kDouble);
  expect_refused("policy_rejected", [&] { preference_loss(in, {}); });
  in = example(false);
  in.rejected_tokens = vector({3, 4, 0, 4});
  expect_refused("pair=2", [&] { preference_loss(in, {.loss_type = {PreferenceLoss::kOrpo}}); });
  in = example(true);
  in.rejected_tokens = vector({3, 4, 0, 4});
  // as one token, like TRL
  EXPECT_NO_THROW(preference_loss(in, {.loss_type = {PreferenceLoss::kIpo}}));
}

TEST(PreferenceRefusals, CounterpartsOfTheseVeryPairs) {
  const PreferenceOptions aot{.loss_type = {PreferenceLoss::kAot}};
  PreferenceInputs in = example(true);
  expect_refused("counterparts is missing", [&] { preference_loss(in, aot); });
  add_counterparts(in, aot);
  EXPECT_NO_THROW(preference_loss(in, aot));
  expect_refused("none of the losses reads them", [&] { preference_loss(in, {}); });
  in.counterparts = in.counterparts.narrow(1, 0, 3);
  expect_refused("counterparts must be [3, P]", [&] { preference_loss(in, aot); });
}

TEST(PreferenceRefusals, WhoNeedsAReference) {
  using Loss = PreferenceLoss;
  for (Loss loss : all_losses())
    EXPECT_EQ(needs_reference({.loss_type = {loss}}),
              loss != Loss::kSimpo && loss != Loss::kOrpo && loss != Loss::kSft);
  EXPECT_TRUE(needs_reference({.loss_type = {Loss::kSimpo, Loss::kIpo}}));
  EXPECT_FALSE(needs_reference({.loss_type = {Loss::kSimpo, Loss::kSft}}));
  EXPECT_TRUE(uses_chosen_nll({.loss_type = {Loss::kOrpo}}));
  EXPECT_FALSE(uses_chosen_nll({.loss_type = {Loss::kSimpo}}));
}

}  // namespace
}  // namespace retort::losses::preference

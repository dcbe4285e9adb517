// The losses with tensors on a device, as far as that can be seen without one: on a stand-in,
// against the same operators on the CPU.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>

#include "base/error.h"
#include "recipes/losses/advantages.h"
#include "recipes/losses/detail/aten_losses.h"
#include "recipes/losses/policy.h"
#include "recipes/losses/preference.h"
#include "tests/losses/device_vocab.h"
#include "tests/losses/distill_cases.h"
#include "tests/losses/stand_in_device.h"
#include "tests/losses/uld_cases.h"
#include "tests/losses/vocab_ranks.h"
#include "tests/support/thrown.h"

namespace retort::losses::testing {
namespace {

at::Tensor there(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.detach().to(test::stand_in_device()) : tensor;
}
at::Tensor leaf_there(const at::Tensor& tensor, at::ScalarType dtype = at::kFloat) {
  return tensor.defined() ? there(tensor.to(dtype)).requires_grad_() : tensor;
}

TeacherSignal there(const TeacherSignal& signal) {
  if (const auto* top = std::get_if<TeacherTopK>(&signal))
    return TeacherTopK{there(top->ids), there(top->logps), there(top->log_tail)};
  if (const auto* full = std::get_if<TeacherFull>(&signal)) return TeacherFull{there(full->logps)};
  if (const auto* sampled = std::get_if<TeacherSampled>(&signal))
    return TeacherSampled{there(sampled->ids), there(sampled->logps), there(sampled->kappa)};
  const auto& hidden = std::get<TeacherHidden>(signal);
  return TeacherHidden{there(hidden.hidden), there(hidden.weight), there(hidden.bias)};
}

Outcome run(const at::Tensor& h, const at::Tensor& w, const at::Tensor& b,
            const std::function<DistillResult()>& loss) {
  Outcome outcome;
  outcome.result = loss();
  outcome.loss = outcome.result.loss_sum.item<double>();
  outcome.result.loss_sum.backward();
  outcome.dh = h.grad().cpu();
  outcome.dw = w.grad().cpu();
  if (b.defined()) outcome.db = b.grad().cpu();
  return outcome;
}

Outcome on_device(const Problem& p, const at::Tensor& targets, const TeacherSignal& signal,
                  const DivergenceOptions& options, const parallel::VocabShard& vocab,
                  at::ScalarType dtype) {
  const at::Tensor h = leaf_there(p.hidden, dtype), w = leaf_there(p.weight, dtype),
                   b = leaf_there(p.bias, dtype);
  return run(h, w, b, [&] { return linear_distill(h, w, b, targets, signal, options, vocab); });
}

Outcome on_host(const Problem& p, const TeacherSignal& signal, const DivergenceOptions& options,
                const parallel::VocabShard& vocab, at::ScalarType dtype) {
  const at::Tensor h = leaf(p.hidden, dtype), w = leaf(p.weight, dtype), b = leaf(p.bias, dtype);
  return run(h, w, b, [&] {
    return detail::read(detail::aten_distill(h, w, b, p.targets, signal, options, vocab));
  });
}

// `bound`: of gradients, which bfloat16 rounds on a device before their products.
void compare(const Outcome& got, const Outcome& expected, const std::string& name,
             double bound = 1e-6) {
  const auto a = numbers_of(got), b = numbers_of(expected);
  for (size_t i = 0; i < a.size(); ++i)
    require_near(a[i].second, b[i].second, 1e-6, name + ": " + a[i].first);
  require_near(got.dh, expected.dh, bound, name + ": dh");
  require_near(got.dw, expected.dw, bound, name + ": dw");
  if (got.db.defined()) require_near(got.db, expected.db, bound, name + ": db");
}

// Of every divergence and payload every second case (payloads follow one another in threes),
// targets and signal by turns on the host and on the device.
TEST(AnyDevice, Distillation) {
  const DistillCases all = distill_cases();
  const int64_t before = test::stand_in_operators();
  size_t turn = 0;
  for (size_t i = 0; i < all.cases.size(); i += 2) {
    const DistillCase& c = all.cases[i];
    SCOPED_TRACE(c.name);
    const Problem& p = all.problems[c.problem];
    const auto dtype = turn % 5 == 0 ? at::kBFloat16 : at::kFloat;
    const at::Tensor targets = turn % 2 == 0 ? p.targets : there(p.targets);
    const Outcome got =
        on_device(p, targets, turn % 3 == 0 ? c.signal : there(c.signal), c.options, {}, dtype);
    const double bound = dtype == at::kBFloat16 ? 4e-3 : 1e-6;
    ASSERT_NO_THROW(compare(got, on_host(p, c.signal, c.options, {}, dtype), c.name, bound));
    ++turn;
  }
  EXPECT_GT(test::stand_in_operators() - before, static_cast<int64_t>(50 * turn));
}

TEST(AnyDevice, UldAndGold) {
  const UldProblem p = random_uld_problem(31, 45, 62);
  const auto compare_with_host = [&](const TeacherSignal& signal, const UldOptions& options) {
    const UldOutcome expected = uld(p, signal, options);
    const at::Tensor h = leaf_there(p.both.hidden), w = leaf_there(p.both.weight);
    const at::Tensor b = leaf_there(p.both.bias);
    test::RecordedReads reads;
    const UnreadUld got =
        unread_uld(h, w, b, p.both.targets, there(signal), p.teacher_targets, p.groups, options);
    EXPECT_EQ(reads.take(), std::vector<std::string>());
    got.loss_sum.backward();
    const at::Tensor numbers = got.numbers.cpu();
    const auto a = numbers_of(UldOutcome{
        UldSums::of(numbers.const_data_ptr<double>()), got.loss_sum.item<double>(), {}, {}, {}});
    for (size_t i = 0; i < a.size(); ++i)
      require_near(a[i].second, numbers_of(expected)[i].second, 1e-6, a[i].first);
    require_near(h.grad().cpu(), expected.dh, 2e-6, "dh");
    require_near(w.grad().cpu(), expected.dw, 2e-6, "dw");
    require_near(b.grad().cpu(), expected.db, 2e-6, "db");
  };
  ASSERT_NO_THROW(compare_with_host(hidden_signal(p.both), {.temperature = 2, .ce_weight = 0.3}));
  ASSERT_NO_THROW(
      compare_with_host(hidden_signal(p.both), {.matched = some_matched_ids(p, 20, 0.5)}));
  ASSERT_NO_THROW(compare_with_host(top_k_signal(p.both, 1, 6), {.chunk_tokens = 4}));
}

TEST(AnyDevice, CrossEntropyAndLogProbabilities) {
  const Problem p = random_problem(
      {.rows = 45, .vocab = 131, .width = 12, .teacher_vocab = 1, .teacher_width = 1, .bias = true},
      61);
  const at::Tensor scale = at::sin(at::arange(45, at::kFloat));
  for (const at::Tensor& targets : {p.targets, there(p.targets)})
    for (const int64_t chunk : {0, 8}) {
      const at::Tensor h = leaf(p.hidden);
      const at::Tensor w = leaf(p.weight);
      const at::Tensor b = leaf(p.bias);
      const at::Tensor h2 = leaf_there(p.hidden);
      const at::Tensor w2 = leaf_there(p.weight);
      const at::Tensor b2 = leaf_there(p.bias);

      // The same operators on the host give what the device has to.
      const CrossEntropyResult expected =
          detail::read(detail::aten_cross_entropy(h, w, b, p.targets, chunk, {}));
      const CrossEntropyResult got = linear_cross_entropy(h2, w2, b2, targets, chunk);
      EXPECT_EQ(got.loss_sum.device(), h2.device());
      EXPECT_NEAR(got.loss_sum.item<double>(), expected.loss_sum.item<double>(), 1e-6);
      EXPECT_NEAR(got.entropy_sum, expected.entropy_sum, 1e-6);
      EXPECT_EQ(got.num_correct, expected.num_correct);

      const LogProbsOptions options{.temperature = 0.7, .entropy = true, .chunk_tokens = chunk};
      const LogProbs rows = detail::aten_log_probs(h, w, b, p.targets, options, {});
      const LogProbs mine = linear_log_probs(h2, w2, b2, targets, options);
      EXPECT_EQ(mine.log_probs.device(), h2.device());
      EXPECT_LT(relative_difference(mine.log_probs.cpu(), rows.log_probs), 1e-7);
      EXPECT_LT(relative_difference(mine.entropy.cpu(), rows.entropy), 1e-7);

      (expected.loss_sum * 0.3 + (rows.log_probs * scale).sum()).backward();
      (got.loss_sum * 0.3 + (mine.log_probs * there(scale)).sum()).backward();
      EXPECT_LT(relative_difference(h2.grad().cpu(), h.grad()), 1e-6);
      EXPECT_LT(relative_difference(w2.grad().cpu(), w.grad()), 1e-6);
      EXPECT_LT(relative_difference(b2.grad().cpu(), b.grad()), 1e-6);
    }

  const at::NoGradGuard no_grad;
  const at::Tensor none = there(p.hidden.narrow(0, 0, 0));
  EXPECT_EQ(linear_cross_entropy(none, there(p.weight), {}, p.targets.narrow(0, 0, 0))
                .loss_sum.item<double>(),
            0);
}

// The whole loss and this rank's part of it; what the ranks put together goes through host memory.
void split_scenario(parallel::Group& group) {
  const DistillCases all = distill_cases();
  const Problem& p = all.problems[0];  // the teacher has as many ids
  const parallel::VocabShard vocab = shard_of(group, p.weight.size(0));
  for (size_t i = 0; i < all.cases.size(); i += 4) {
    const DistillCase& c = all.cases[i];
    if (c.problem != 0) continue;
    TeacherSignal own = c.signal;
    if (const auto* hidden = std::get_if<TeacherHidden>(&c.signal))
      own = TeacherHidden{hidden->hidden, own_rows(hidden->weight, vocab),
                          own_rows(hidden->bias, vocab)};
    else if (const auto* full = std::get_if<TeacherFull>(&c.signal))
      own = TeacherFull{own_rows(full->logps.t(), vocab).t()};
    const Problem part = own_part(p, vocab);
    compare(on_device(part, p.targets, own, c.options, vocab, at::kFloat),
            on_host(part, own, c.options, vocab, at::kFloat), c.name);
  }
  const LogProbs rows =
      detail::aten_log_probs(p.hidden, own_rows(p.weight, vocab), {}, p.targets, {}, vocab);
  const LogProbs mine =
      linear_log_probs(there(p.hidden), there(own_rows(p.weight, vocab)), {}, p.targets, {}, vocab);
  require_near(mine.log_probs.cpu(), rows.log_probs, 1e-7, "log-probabilities");
}

// The same two ranks do both; where each has a device of its own, that is known first.
void two_ways_scenario(parallel::Group& group) {
  ::setenv("STAND_IN_DEVICES", "2", 1);
  test::stand_in_device();
  device_vocab_scenario();
  split_scenario(group);
}
TEST(AnyDevice, ASplitVocabularyThroughTheHostAndOnDevices) { expect_ranks_succeed("two_ways", 2); }

TEST(AnyDevice, DamagedPayloadsNameTheRow) {
  const Problem p = random_problem(
      {.rows = 6, .vocab = 20, .width = 4, .teacher_vocab = 20, .teacher_width = 3}, 31);
  TeacherTopK top = top_k_signal(p, 1, 4);
  top.ids = top.ids.clone();
  top.ids[3][1] = 20;
  TeacherHidden hidden = hidden_signal(p);
  hidden.hidden = hidden.hidden.clone();
  hidden.hidden[4][0] = NAN;
  const auto row = [&](const TeacherSignal& signal) {
    const Error error = test::error_of(
        [&] { linear_distill(there(p.hidden), there(p.weight), {}, p.targets, signal, {}); });
    return error.context().at(0).second;
  };
  EXPECT_EQ(row(top), "3");
  EXPECT_EQ(row(there(TeacherSignal(hidden))), "4");
}

TEST(AnyDevice, WhatIsRefused) {
  const Problem p = random_problem(
      {.rows = 6, .vocab = 20, .width = 4, .teacher_vocab = 20, .teacher_width = 3}, 31);
  const auto refuse = [](const char* part, const std::function<void()>& call) {
    const std::string message = test::message_of(call);
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  refuse("on one device", [&] { linear_cross_entropy(there(p.hidden), p.weight, {}, p.targets); });
  refuse("on one device", [&] { linear_log_probs(p.hidden, there(p.weight), {}, p.targets); });
  refuse("targets must be on",
         [&] { linear_cross_entropy(p.hidden, p.weight, {}, there(p.targets)); });
  for (const TeacherSignal& signal :
       {TeacherSignal(hidden_signal(p)), TeacherSignal(full_signal(p, 1)),
        TeacherSignal(top_k_signal(p, 1, 4))})
    refuse("signal must be on",
           [&] { linear_distill(p.hidden, p.weight, {}, p.targets, there(signal), {}); });
}

at::Tensor vector(std::vector<float> values) { return at::tensor(values, at::kFloat); }

TEST(AnyDevice, Preferences) {
  const PreferenceOptions options{.loss_type = {PreferenceLoss::kSigmoid, PreferenceLoss::kOrpo}};
  const PreferenceInputs host{vector({-12.5f, -3.25f, -40, -7}).requires_grad_(),
                              vector({-11, -6.5f, -38, -7}).requires_grad_(),
                              vector({-13, -3, -36, -8}),
                              vector({-10.5f, -7, -41, -8}),
                              vector({5, 2, 9, 4}),
                              vector({3, 4, 8, 4})};

  // The second time the two sides of a pair are on different devices.
  for (const bool rejected : {true, false}) {
    PreferenceInputs in{leaf_there(host.policy_chosen),
                        rejected ? leaf_there(host.policy_rejected) : leaf(host.policy_rejected),
                        there(host.reference_chosen),
                        host.reference_rejected,
                        there(host.chosen_tokens),
                        there(host.rejected_tokens)};
    const PreferenceResult got = preference_loss(in, options);
    const PreferenceResult expected = preference_loss(host, options);
    EXPECT_EQ(got.loss_sum.device(), in.policy_chosen.device());
    EXPECT_EQ(got.loss_sum.item<float>(), expected.loss_sum.item<float>());

    // The host's leaves are used twice.
    (got.loss_sum + 0.1 * got.chosen_nll_sum).backward();
    host.policy_chosen.mutable_grad() = at::Tensor();
    host.policy_rejected.mutable_grad() = at::Tensor();
    (expected.loss_sum + 0.1 * expected.chosen_nll_sum).backward();
    EXPECT_TRUE(at::equal(in.policy_chosen.grad().cpu(), host.policy_chosen.grad()));
    EXPECT_TRUE(at::equal(in.policy_rejected.grad().cpu(), host.policy_rejected.grad()));
  }
}

TEST(AnyDevice, PolicyGradientsAndAdvantages) {
  PolicyInputs host;
  host.policy_logps = vector({-1.0f, -2.5f, -0.75f, -3, -0.5f, -1.25f, -2}).requires_grad_();
  host.old_logps = vector({-1.125f, -2.25f, -1.5f, -2.5f, -0.5f, -1.75f, -2.0625f});
  host.reference_logps = vector({-1.5f, -2, -1, -2.5f, -0.25f, -1.5f, -2});
  host.sequence_of_row = at::tensor({0, 0, 1, 3, 1, 3, 3}, at::kLong);
  host.advantages = vector({1.5f, -0.5f, 9, 0.25f});
  host.num_sequences = 4;
  PolicyInputs in = host;
  in.policy_logps = leaf_there(host.policy_logps);
  for (at::Tensor* tensor :
       {&in.old_logps, &in.reference_logps, &in.sequence_of_row, &in.advantages})
    *tensor = there(*tensor);
  const PolicyResult got = policy_loss(in, {.beta = 0.5}),
                     expected = policy_loss(host, {.beta = 0.5});
  EXPECT_EQ(got.loss_sum.device(), in.policy_logps.device());
  EXPECT_EQ(got.loss_sum.item<float>(), expected.loss_sum.item<float>());
  got.loss_sum.backward();
  expected.loss_sum.backward();
  EXPECT_TRUE(at::equal(in.policy_logps.grad().cpu(), host.policy_logps.grad()));

  EXPECT_TRUE(at::equal(distillation_advantages(in.old_logps, in.reference_logps),
                        distillation_advantages(host.old_logps, host.reference_logps)));
  EXPECT_TRUE(at::equal(group_advantages(in.advantages, 2, ScaleRewards::kGroup).advantages,
                        group_advantages(host.advantages, 2, ScaleRewards::kGroup).advantages));
}

// That the stand-in would tell: host code that reads its memory, and operators over two devices.
TEST(StandInDevice, PunishesWhatADeviceWould) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const at::Tensor x = there(at::arange(6, at::kFloat).view({2, 3}));
  EXPECT_TRUE(at::equal((x.t() + 1).select(0, 2).cpu(), at::tensor({3.0f, 6.0f})));
  EXPECT_THROW(x + at::ones({2, 3}), std::exception);
  EXPECT_THROW(at::mm(x, at::ones({3, 3})), std::exception);
  EXPECT_THROW(at::empty_like(x).copy_(x).masked_fill_(at::ones({2, 3}, at::kBool), 0),
               std::exception);
  EXPECT_DEATH(std::printf("%f", x.const_data_ptr<float>()[0]), "");
}

}  // namespace

std::map<std::string, Scenario> scenarios() { return {{"two_ways", two_ways_scenario}}; }

}  // namespace retort::losses::testing

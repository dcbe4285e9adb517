// Preference losses, gradients and metrics against TRL 1.16.0's trainers (make_trl_goldens.py),
// from hidden states to the gradient of hidden states and head; then wrong formulas against the
// same numbers.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <sstream>

#include "recipes/losses/counterparts.h"
#include "recipes/losses/linear_log_probs.h"
#include "recipes/losses/preference.h"
#include "tests/losses/fixtures.h"
#include "tests/losses/trl_fixtures.h"

namespace retort::losses::preference {
namespace {

constexpr double kTolerance = 1e-5;

struct Batch {
  // position t predicts token t + 1
  Packing packing{trl_goldens().tensor("pairs.mask").narrow(1, 1, 9)};
  at::Tensor shifted(const std::string& name) const {
    return trl_goldens().tensor(name).narrow(1, 0, 9);
  }
  at::Tensor targets() const {
    return packing.rows(trl_goldens().tensor("pairs.ids").narrow(1, 1, 9)).to(at::kLong);
  }
  at::Tensor weight() const { return trl_goldens().tensor("pairs.weight"); }
};

struct Measured {
  double loss = 0;
  at::Tensor dh, dw;  // of the whole [8, 10, H] and of the head
  PreferenceResult result;
};

// `reference_name`: whose hidden states are the reference's; "": none.
PreferenceInputs inputs_of(const Batch& batch, const at::Tensor& policy_logps,
                           const std::string& reference_name) {
  const auto halves = [](const at::Tensor& sums) { return sums.chunk(2); };
  const auto policy = halves(batch.packing.sums(policy_logps)),
             tokens = halves(batch.packing.tokens);
  PreferenceInputs in{policy[0], policy[1], {}, {}, tokens[0], tokens[1], {}};
  if (!reference_name.empty()) {
    const at::Tensor rows = batch.packing.rows(batch.shifted("pairs." + reference_name));
    const auto reference = halves(
        batch.packing.sums(linear_log_probs(rows, batch.weight(), {}, batch.targets()).log_probs));
    in.reference_chosen = reference[0];
    in.reference_rejected = reference[1];
  }
  return in;
}

// The loss of the batch as the one global batch.
Measured run(const PreferenceOptions& options, const std::string& reference = "reference") {
  const Batch batch;
  const at::Tensor hidden = batch.packing.rows(batch.shifted("pairs.hidden")).requires_grad_();
  const at::Tensor weight = batch.weight().clone().requires_grad_();
  const at::Tensor logps =
      linear_log_probs(hidden, weight, {}, batch.targets(), {.chunk_tokens = 7}).log_probs;
  Measured measured;
  PreferenceInputs in = inputs_of(batch, logps, needs_reference(options) ? reference : "");
  if (needs_counterparts(options))
    in.counterparts = counterparts(in.policy_chosen, in.policy_rejected, in.reference_chosen,
                                   in.reference_rejected);
  measured.result = preference_loss(in, options);
  const at::Tensor loss = measured.result.loss_sum / measured.result.count +
                          measured.result.chosen_nll_sum / measured.result.chosen_tokens;
  loss.backward();
  measured.loss = loss.item<double>();
  measured.dh = at::constant_pad_nd(batch.packing.padded(hidden.grad()), {0, 0, 0, 1});
  measured.dw = weight.grad();
  return measured;
}

template <class T>
std::vector<T> split(const std::string& text, T (*parse)(const std::string&)) {
  std::vector<T> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');)
    parts.push_back(parse(part));
  return parts;
}

PreferenceOptions options_of(const TrlRecord& c) {
  PreferenceOptions options;
  options.loss_type = split<PreferenceLoss>(
      c.text("losses"), [](const std::string& s) { return parse_enum<PreferenceLoss>(s); });
  if (c.text("weights") != "-")
    options.loss_weights =
        split<double>(c.text("weights"), [](const std::string& s) { return std::stod(s); });
  options.beta = c.number("beta");
  options.label_smoothing = c.number("smoothing");
  options.simpo_gamma = c.number("gamma");
  options.discopop_tau = c.number("tau");
  return options;
}

void expect_near(double got, double expected, double tolerance, const char* what) {
  EXPECT_NEAR(got, expected, tolerance * std::max(std::abs(expected), 1e-3)) << what;
}

TEST(PreferenceParity, EveryLossOfTrl) {
  const auto cases = trl_goldens().of_kind("preference");
  ASSERT_GE(cases.size(), 47u);
  std::set<PreferenceLoss> covered;
  for (const TrlRecord& c : cases) {
    SCOPED_TRACE(c.name + " " + c.text("losses"));
    const PreferenceOptions options = options_of(c);
    covered.insert(options.loss_type.begin(), options.loss_type.end());
    const Measured got = run(options, c.text("reference"));
    expect_near(got.loss, c.number("loss"), kTolerance, "loss");
    expect_near(got.loss, c.number("loss32"), 2 * kTolerance, "loss in float32");
    EXPECT_LT(relative_difference(got.dh, trl_goldens().tensor(c.name + ".dh")), kTolerance);
    EXPECT_LT(relative_difference(got.dw, trl_goldens().tensor(c.name + ".dw")), kTolerance);
    const PreferenceResult& r = got.result;
    ASSERT_EQ(r.count, 4);
    expect_near(r.rewards_chosen_sum / 4, c.number("rewards/chosen"), kTolerance, "rewards/chosen");
    expect_near(r.rewards_rejected_sum / 4, c.number("rewards/rejected"), kTolerance,
                "rewards/rejected");
    EXPECT_NEAR(r.rewards_margins_sum / 4, c.number("rewards/margins"), kTolerance);
    EXPECT_EQ(r.rewards_accuracies_sum / 4, c.number("rewards/accuracies"));
    expect_near(r.logps_chosen_sum / 4, c.number("logps/chosen"), kTolerance, "logps/chosen");
    expect_near(r.logps_rejected_sum / 4, c.number("logps/rejected"), kTolerance, "logps/rejected");
  }
  EXPECT_EQ(covered.size(), EnumNames<PreferenceLoss>::values.size());
}

// ---- wrong formulas must not pass ----

const TrlRecord& case_of(const std::string& losses, double beta) {
  for (const TrlRecord& c : trl_goldens().records)
    if (c.kind == "preference" && c.text("losses") == losses && c.number("beta") == beta) return c;
  throw std::runtime_error("no such case: " + losses);
}

void expect_detected(const std::string& losses, const PreferenceOptions& wrong) {
  const TrlRecord& c = case_of(losses, wrong.beta);
  const Measured got = run(wrong, c.text("reference"));
  EXPECT_GT(std::abs(got.loss - c.number("loss")), 100 * kTolerance * std::abs(c.number("loss")))
      << losses;
  EXPECT_GT(relative_difference(got.dh, trl_goldens().tensor(c.name + ".dh")), 100 * kTolerance)
      << losses;
}

TEST(PreferenceMutation, IgnoredLabelSmoothingIsDetected) {
  for (double beta : {0.1, 0.8}) {
    expect_detected("robust", {.loss_type = {PreferenceLoss::kSigmoid}, .beta = beta});
    expect_detected("cdpo", {.loss_type = {PreferenceLoss::kSigmoid}, .beta = beta});
    expect_detected("cdpo",
                    {.loss_type = {PreferenceLoss::kRobust}, .beta = beta, .label_smoothing = 0.2});
  }
}

TEST(PreferenceMutation, AnotherLossOfTheFamilyIsDetected) {
  const std::vector<std::string> names = {"sigmoid",      "hinge",    "ipo",
                                          "sigmoid_norm", "apo_zero", "apo_down",
                                          "nca_pair",     "bco_pair", "sppo_hard"};
  for (const std::string& truth : names)
    for (const std::string& used : names)
      if (truth != used)
        expect_detected(truth, {.loss_type = {parse_enum<PreferenceLoss>(used)}, .beta = 0.8});
}

// Of what exo_pair and discopop read beside beta, a tenth more or less.
TEST(PreferenceMutation, AnotherSmoothingAndAnotherTauAreDetected) {
  using Loss = PreferenceLoss;
  expect_detected("exo_pair",
                  {.loss_type = {Loss::kExoPair}, .beta = 0.8, .label_smoothing = 0.18});
  expect_detected("exo_pair", {.loss_type = {Loss::kCdpo}, .beta = 0.8, .label_smoothing = 0.2});
  expect_detected("discopop", {.loss_type = {Loss::kDiscopop}, .beta = 0.1, .discopop_tau = 0.055});
  expect_detected("discopop", {.loss_type = {Loss::kDiscopop}, .beta = 0.8, .discopop_tau = 0.44});
  expect_detected("aot_unpaired", {.loss_type = {Loss::kAot}, .beta = 0.8, .label_smoothing = 0.2});
  expect_detected("aot_unpaired",
                  {.loss_type = {Loss::kAotUnpaired}, .beta = 0.8, .label_smoothing = 0.18});
}

// A pair is not compared with itself: without sorting, aot would be cdpo or sigmoid.
TEST(PreferenceMutation, PairsThatAreNotSortedAreDetected) {
  expect_detected("aot", {.loss_type = {PreferenceLoss::kSigmoid}, .beta = 0.8});
  expect_detected("aot_unpaired",
                  {.loss_type = {PreferenceLoss::kCdpo}, .beta = 0.8, .label_smoothing = 0.2});
}

TEST(PreferenceMutation, ReversedPairsAndAMissingReferenceAreDetected) {
  const Batch batch;
  const at::Tensor logps = linear_log_probs(batch.packing.rows(batch.shifted("pairs.hidden")),
                                            batch.weight(), {}, batch.targets())
                               .log_probs;
  const PreferenceInputs right = inputs_of(batch, logps, "reference");
  const double truth = case_of("sigmoid", 0.8).number("loss");
  const PreferenceOptions options{.beta = 0.8};
  const auto loss = [&](const PreferenceInputs& in) {
    return preference_loss(in, options).loss_sum.item<double>() / 4;
  };
  EXPECT_NEAR(loss(right), truth, kTolerance * truth);
  PreferenceInputs reversed = right;
  std::swap(reversed.policy_chosen, reversed.policy_rejected);
  std::swap(reversed.reference_chosen, reversed.reference_rejected);
  EXPECT_GT(std::abs(loss(reversed) - truth), 0.01);
  PreferenceInputs swapped_reference = right;
  std::swap(swapped_reference.reference_chosen, swapped_reference.reference_rejected);
  EXPECT_GT(std::abs(loss(swapped_reference) - truth), 0.01);
  PreferenceInputs zero_reference = right;
  zero_reference.reference_chosen = zero_reference.reference_rejected = at::zeros({4});
  EXPECT_GT(std::abs(loss(zero_reference) - truth), 0.01);
}

TEST(PreferenceMutation, AWrongCountIsDetected) {
  const TrlRecord& c = case_of("sigmoid,sft", 0.8);
  const PreferenceResult r = run(options_of(c)).result;
  const double pairs = r.loss_sum.item<double>(), nll = r.chosen_nll_sum.item<double>(),
               truth = c.number("loss");
  EXPECT_NEAR(pairs / 4 + nll / r.chosen_tokens, truth, kTolerance * truth);
  const Batch batch;
  const double all_tokens = static_cast<double>(batch.packing.count()), padded = 4 * 9;
  // sequences instead of pairs
  for (double wrong : {pairs / 8 + nll / r.chosen_tokens,
                       // pairs instead of tokens
                       pairs / 4 + nll / 4,
                       // both completions' tokens
                       pairs / 4 + nll / all_tokens,
                       // masked positions counted as zeros
                       pairs / 4 + nll / padded, (pairs + nll) / 4,
                       (pairs + nll) / r.chosen_tokens})  // one count for both
    EXPECT_GT(std::abs(wrong - truth), 100 * kTolerance * truth) << wrong;
}

}  // namespace
}  // namespace retort::losses::preference

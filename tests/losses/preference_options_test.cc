// The options of DPO that weigh tokens and pairs or derive the reward from another divergence,
// against numbers of TRL 1.16.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "recipes/losses/counterparts.h"
#include "recipes/losses/log_sum_squares.h"
#include "recipes/losses/pair_weights.h"
#include "recipes/losses/preference.h"
#include "tests/support/thrown.h"

namespace retort::losses::preference_options {
namespace {

using Loss = PreferenceLoss;
using test::expect_refused;

// Three pairs whose completions have tokens of these numbers, chosen and rejected in turn.
constexpr std::array<int64_t, 6> kTokens{5, 3, 2, 4, 4, 4};

// A number of each token t of each completion s.
template <class Number>
at::Tensor token_numbers(Number number) {
  std::vector<float> values;
  for (int64_t s = 0; s < 6; ++s)
    for (int64_t t = 0; t < kTokens[static_cast<size_t>(s)]; ++t)
      values.push_back(static_cast<float>(number(s, t)));
  return at::tensor(values, at::kFloat);
}

at::Tensor sequences() {
  std::vector<int64_t> rows;
  for (int64_t s = 0; s < 6; ++s)
    rows.insert(rows.end(), static_cast<size_t>(kTokens[static_cast<size_t>(s)]), s);
  return at::tensor(rows, at::kLong);
}

// A loss, and its gradient by the first and the last token of each completion.
struct Case {
  PreferenceOptions options;
  double loss;
  std::array<std::array<double, 2>, 6> gradients;
};

// DPOTrainer._compute_loss of TRL 1.16.0 with a model that answers the numbers of the test
// (float64; alpha_divergence float32, as its clamp knows no other), and its backward().
std::vector<Case> trl_cases() {
  return {
      Case{.options = {.loss_type = {Loss::kSigmoid},
                       .beta = 0.5,
                       .f_divergence_type = FDivergence::kForwardKl},
           .loss = 1.059015905,
           .gradients = {{{-0.209059176, -0.209059176},
                          {0.10485908, 0.10485908},
                          {-0.243837438, -0.243837438},
                          {0.0583524744, 0.0583524744},
                          {-0.22878409, -0.22878409},
                          {0.103832469, 0.103832469}}}},
      Case{.options = {.loss_type = {Loss::kSigmoidNorm},
                       .beta = 0.5,
                       .f_divergence_type = FDivergence::kForwardKl},
           .loss = 0.797034874,
           .gradients = {{{-0.0352342576, -0.0352342576},
                          {0.029454434, 0.029454434},
                          {-0.103100491, -0.103100491},
                          {0.0123364337, 0.0123364337},
                          {-0.0477931498, -0.0477931498},
                          {0.0216906723, 0.0216906723}}}},
      Case{.options = {.loss_type = {Loss::kHinge},
                       .beta = 0.5,
                       .f_divergence_type = FDivergence::kForwardKl},
           .loss = 1.630319375,
           .gradients = {{{-0.335625451, -0.335625451},
                          {0.168341695, 0.168341695},
                          {-0.352833336, -0.352833336},
                          {0.0844361654, 0.0844361654},
                          {-0.35637937, -0.35637937},
                          {0.161740922, 0.161740922}}}},
      Case{.options = {.loss_type = {Loss::kIpo},
                       .beta = 0.5,
                       .f_divergence_type = FDivergence::kForwardKl},
           .loss = 1.978773771,
           .gradients = {{{-0.322039463, -0.322039463},
                          {0.269212147, 0.269212147},
                          {-1.1868225, -1.1868225},
                          {0.142008607, 0.142008607},
                          {-0.460427061, -0.460427061},
                          {0.208962425, 0.208962425}}}},
      Case{.options = {.loss_type = {Loss::kExoPair},
                       .beta = 0.5,
                       .label_smoothing = 0.1,
                       .f_divergence_type = FDivergence::kForwardKl},
           .loss = 0.8935321773,
           .gradients = {{{-0.212788148, -0.212788148},
                          {0.106729443, 0.106729443},
                          {-0.226157924, -0.226157924},
                          {0.0541216091, 0.0541216091},
                          {-0.227808913, -0.227808913},
                          {0.10338989, 0.10338989}}}},
      Case{.options = {.loss_type = {Loss::kRobust},
                       .beta = 0.5,
                       .label_smoothing = 0.1,
                       .f_divergence_type = FDivergence::kForwardKl},
           .loss = 1.137805827,
           .gradients = {{{-0.251012358, -0.251012358},
                          {0.125901792, 0.125901792},
                          {-0.287941605, -0.287941605},
                          {0.0689069951, 0.0689069951},
                          {-0.273331512, -0.273331512},
                          {0.124050084, 0.124050084}}}},
      Case{.options = {.loss_type = {Loss::kDiscopop},
                       .beta = 0.5,
                       .discopop_tau = 0.5,
                       .f_divergence_type = FDivergence::kForwardKl},
           .loss = 1.239050524,
           .gradients = {{{-0.212543604, -0.212543604},
                          {0.106606785, 0.106606785},
                          {-0.230618364, -0.230618364},
                          {0.0551890321, 0.0551890321},
                          {-0.227319125, -0.227319125},
                          {0.103167602, 0.103167602}}}},
      Case{.options = {.loss_type = {Loss::kSigmoid},
                       .beta = 0.5,
                       .f_divergence_type = FDivergence::kJsDivergence},
           .loss = 0.8357002826,
           .gradients = {{{-0.0613013251, -0.0613013251},
                          {0.0461006859, 0.0461006859},
                          {-0.0667732203, -0.0667732203},
                          {0.0330594144, 0.0330594144},
                          {-0.0633563161, -0.0633563161},
                          {0.0457956268, 0.0457956268}}}},
      Case{.options = {.loss_type = {Loss::kSigmoidNorm},
                       .beta = 0.5,
                       .f_divergence_type = FDivergence::kJsDivergence},
           .loss = 0.7350279719,
           .gradients = {{{-0.0113601001, -0.0113601001},
                          {0.0142386375, 0.0142386375},
                          {-0.0303660854, -0.0303660854},
                          {0.00751712283, 0.00751712283},
                          {-0.0146076587, -0.0146076587},
                          {0.0105588034, 0.0105588034}}}},
      Case{.options = {.loss_type = {Loss::kHinge},
                       .beta = 0.5,
                       .f_divergence_type = FDivergence::kJsDivergence},
           .loss = 1.266240773,
           .gradients = {{{-0.111364629, -0.111364629},
                          {0.0837499965, 0.0837499965},
                          {-0.11319645, -0.11319645},
                          {0.0560435504, 0.0560435504},
                          {-0.113558956, -0.113558956},
                          {0.0820834271, 0.0820834271}}}},
      Case{.options = {.loss_type = {Loss::kIpo},
                       .beta = 0.5,
                       .f_divergence_type = FDivergence::kJsDivergence},
           .loss = 1.361466619,
           .gradients = {{{-0.0962490578, -0.0962490578},
                          {0.12063762, 0.12063762},
                          {-0.292654032, -0.292654032},
                          {0.0724464902, 0.0724464902},
                          {-0.126771938, -0.126771938},
                          {0.0916341211, 0.0916341211}}}},
      Case{.options = {.loss_type = {Loss::kExoPair},
                       .beta = 0.5,
                       .label_smoothing = 0.1,
                       .f_divergence_type = FDivergence::kJsDivergence},
           .loss = 0.6653897625,
           .gradients = {{{-0.0661311202, -0.0661311202},
                          {0.0497328564, 0.0497328564},
                          {-0.0701242287, -0.0701242287},
                          {0.0347184982, 0.0347184982},
                          {-0.0680595579, -0.0680595579},
                          {0.0491952548, 0.0491952548}}}},
      Case{.options = {.loss_type = {Loss::kRobust},
                       .beta = 0.5,
                       .label_smoothing = 0.1,
                       .f_divergence_type = FDivergence::kJsDivergence},
           .loss = 0.8689803792,
           .gradients = {{{-0.0752219037, -0.0752219037},
                          {0.0565694355, 0.0565694355},
                          {-0.0809227765, -0.0809227765},
                          {0.0400648582, 0.0400648582},
                          {-0.0775511856, -0.0775511856},
                          {0.0560560552, 0.0560560552}}}},
      Case{.options = {.loss_type = {Loss::kDiscopop},
                       .beta = 0.5,
                       .discopop_tau = 0.5,
                       .f_divergence_type = FDivergence::kJsDivergence},
           .loss = 1.009103036,
           .gradients = {{{-0.0686160781, -0.0686160781},
                          {0.0516016294, 0.0516016294},
                          {-0.0708640985, -0.0708640985},
                          {0.0350848077, 0.0350848077},
                          {-0.0702084164, -0.0702084164},
                          {0.0507485068, 0.0507485068}}}},
      Case{.options = {.loss_type = {Loss::kSigmoid},
                       .beta = 0.5,
                       .f_divergence_type = FDivergence::kAlphaDivergence},
           .loss = 1.004551411,
           .gradients = {{{-0.142393887, -0.142393887},
                          {0.100846268, 0.100846268},
                          {-0.164341241, -0.164341241},
                          {0.0803944543, 0.0803944543},
                          {-0.150391087, -0.150391087},
                          {0.101315491, 0.101315491}}}},
      Case{.options = {.loss_type = {Loss::kSigmoidNorm},
                       .beta = 0.5,
                       .f_divergence_type = FDivergence::kAlphaDivergence},
           .loss = 0.7812438607,
           .gradients = {{{-0.0246219598, -0.0246219598},
                          {0.0290629622, 0.0290629622},
                          {-0.0696375072, -0.0696375072},
                          {0.0170330629, 0.0170330629},
                          {-0.0322791971, -0.0322791971},
                          {0.021745855, 0.021745855}}}},
      Case{.options = {.loss_type = {Loss::kHinge},
                       .beta = 0.5,
                       .f_divergence_type = FDivergence::kAlphaDivergence},
           .loss = 1.544816017,
           .gradients = {{{-0.23651123, -0.23651123},
                          {0.167502105, 0.167502105},
                          {-0.242498577, -0.242498577},
                          {0.118628412, 0.118628412},
                          {-0.243714079, -0.243714079},
                          {0.164185345, 0.164185345}}}},
      Case{.options = {.loss_type = {Loss::kIpo},
                       .beta = 0.5,
                       .f_divergence_type = FDivergence::kAlphaDivergence},
           .loss = 1.815598845,
           .gradients = {{{-0.220293224, -0.220293224},
                          {0.260026962, 0.260026962},
                          {-0.775561929, -0.775561929},
                          {0.189699426, 0.189699426},
                          {-0.301860899, -0.301860899},
                          {0.203357697, 0.203357697}}}},
      Case{.options = {.loss_type = {Loss::kExoPair},
                       .beta = 0.5,
                       .label_smoothing = 0.1,
                       .f_divergence_type = FDivergence::kAlphaDivergence},
           .loss = 0.8392098546,
           .gradients = {{{-0.147966206, -0.147966206},
                          {0.104792699, 0.104792699},
                          {-0.15574722, -0.15574722},
                          {0.0761903301, 0.0761903301},
                          {-0.154012516, -0.154012516},
                          {0.103755184, 0.103755184}}}},
      Case{.options = {.loss_type = {Loss::kRobust},
                       .beta = 0.5,
                       .label_smoothing = 0.1,
                       .f_divergence_type = FDivergence::kAlphaDivergence},
           .loss = 1.072653413,
           .gradients = {{{-0.171957791, -0.171957791},
                          {0.121784039, 0.121784039},
                          {-0.194653556, -0.194653556},
                          {0.0952230021, 0.0952230021},
                          {-0.180855334, -0.180855334},
                          {0.121838659, 0.121838659}}}},
      Case{.options = {.loss_type = {Loss::kDiscopop},
                       .beta = 0.5,
                       .discopop_tau = 0.5,
                       .f_divergence_type = FDivergence::kAlphaDivergence},
           .loss = 1.184547186,
           .gradients = {{{-0.148692086, -0.148692086},
                          {0.105306782, 0.105306782},
                          {-0.15728052, -0.15728052},
                          {0.0769404024, 0.0769404024},
                          {-0.154020205, -0.154020205},
                          {0.103760362, 0.103760362}}}},
      Case{.options = {.loss_type = {Loss::kSigmoid},
                       .beta = 0.5,
                       .f_divergence_type = FDivergence::kAlphaDivergence,
                       .f_alpha_divergence_coef = 1.8},
           .loss = 0.9378240705,
           .gradients = {{{-0.0538247637, -0.0538247637},
                          {0.0934786722, 0.0934786722},
                          {-0.0617996342, -0.0617996342},
                          {0.194007561, 0.194007561},
                          {-0.0521227382, -0.0521227382},
                          {0.0980620906, 0.0980620906}}}},
      Case{.options = {.loss_type = {Loss::kSigmoid}, .beta = 0.5, .use_weighting = true},
           .loss = 0.4060294199,
           .gradients = {{{-0.0410398567, -0.0410398567},
                          {0.0410398567, 0.0410398567},
                          {-0.0457303433, -0.0457303433},
                          {0.0457303433, 0.0457303433},
                          {-0.0429901488, -0.0429901488},
                          {0.0429901488, 0.0429901488}}}},
      Case{.options = {.loss_type = {Loss::kIpo, Loss::kApoZero},
                       .beta = 0.5,
                       .use_weighting = true},
           .loss = 1.183052937,
           .gradients = {{{-0.0807492298, -0.0807492298},
                          {0.123774372, 0.123774372},
                          {-0.226873438, -0.226873438},
                          {0.121759068, 0.121759068},
                          {-0.103516113, -0.103516113},
                          {0.104149152, 0.104149152}}}},
      Case{.options = {.loss_type = {Loss::kSigmoid}, .beta = 0.5, .ld_alpha = 0.3},
           .loss = 0.916336615,
           .gradients = {{{-0.0905444199, -0.027163326},
                          {0.0905444199, 0.0905444199},
                          {-0.10865373, -0.10865373},
                          {0.10865373, 0.0325961189},
                          {-0.099580961, -0.099580961},
                          {0.099580961, 0.099580961}}}},
      Case{.options = {.loss_type = {Loss::kIpo, Loss::kSft}, .beta = 0.5, .ld_alpha = 0.0},
           .loss = 2.431122739,
           .gradients = {{{-0.22939798, -0.0909090909},
                          {0.230814815, 0.230814815},
                          {-0.585075758, -0.585075758},
                          {0.247083333, 0},
                          {-0.290492424, -0.290492424},
                          {0.199583333, 0.199583333}}}},
      Case{.options = {.loss_type = {Loss::kAot}, .beta = 0.5, .ld_alpha = 0.3},
           .loss = 0.916058428,
           .gradients = {{{-0.0905444199, -0.027163326},
                          {0.0905444199, 0.0905444199},
                          {-0.100241249, -0.100241249},
                          {0.100241249, 0.0300723748},
                          {-0.108028147, -0.108028147},
                          {0.108028147, 0.108028147}}}},
      Case{.options = {.loss_type = {Loss::kSigmoid},
                       .beta = 0.5,
                       .f_divergence_type = FDivergence::kJsDivergence,
                       .use_weighting = true,
                       .ld_alpha = 0.3},
           .loss = 0.34035488,
           .gradients = {{{-0.021597295, -0.0064791885},
                          {0.0184470195, 0.0184470195},
                          {-0.0269343981, -0.0269343981},
                          {0.0149256767, 0.00447770301},
                          {-0.0273515884, -0.0273515884},
                          {0.019770454, 0.019770454}}}},
  };
}

// [3] chosen or rejected of the sums of completions.
at::Tensor half_of(const at::Tensor& token_values, int64_t which) {
  return at::zeros({6}, at::kFloat)
      .index_add(0, sequences(), token_values)
      .view({3, 2})
      .select(1, which);
}

TEST(PreferenceOptions, AreThoseOfTrl) {
  const at::Tensor reference =
      token_numbers([](int64_t s, int64_t t) { return -0.5 - 0.11 * ((3 * s + 2 * t) % 6); });
  const at::Tensor squares =
      token_numbers([](int64_t s, int64_t t) { return -0.3 - 0.05 * ((s + 4 * t) % 5); });
  int64_t index = 0;
  for (const Case& want : trl_cases()) {
    SCOPED_TRACE(index++);
    const PreferenceOptions& options = want.options;
    const at::Tensor policy = token_numbers([](int64_t s, int64_t t) {
                                return -0.4 - 0.13 * ((5 * s + 3 * t) % 7);
                              }).requires_grad_();
    const at::Tensor weights = options.ld_alpha
                                   ? shared_length_weights(sequences(), 3, *options.ld_alpha)
                                   : at::ones({policy.numel()}, at::kFloat);

    PreferenceInputs inputs{.policy_chosen = half_of(policy * weights, 0),
                            .policy_rejected = half_of(policy * weights, 1),
                            .reference_chosen = half_of(reference * weights, 0),
                            .reference_rejected = half_of(reference * weights, 1),
                            .chosen_tokens = at::tensor({5.0F, 2.0F, 4.0F}, at::kFloat),
                            .rejected_tokens = at::tensor({3.0F, 4.0F, 4.0F}, at::kFloat)};
    if (options.use_weighting) inputs.pair_weights = pair_weights(policy, squares, sequences(), 3);
    if (options.ld_alpha && uses_chosen_nll(options))
      inputs.policy_chosen_whole = half_of(policy, 0);
    if (needs_counterparts(options))
      inputs.counterparts = counterparts(inputs.policy_chosen, inputs.policy_rejected,
                                         inputs.reference_chosen, inputs.reference_rejected);
    const PreferenceResult result = preference_loss(inputs, options);
    const at::Tensor loss = result.loss_sum / 3 + result.chosen_nll_sum / result.chosen_tokens;
    EXPECT_NEAR(loss.item<double>(), want.loss, 1e-5 * std::abs(want.loss));

    loss.backward();
    const float* gradient = policy.grad().const_data_ptr<float>();
    for (size_t s = 0; s < 6; ++s) {
      EXPECT_NEAR(gradient[0], want.gradients[s][0], 1e-5 * std::abs(want.gradients[s][0])) << s;
      gradient += kTokens[s];
      EXPECT_NEAR(gradient[-1], want.gradients[s][1], 1e-5 * std::abs(want.gradients[s][1])) << s;
    }
  }
}

// Where TRL has no meaning for them, or one that a step in parts cannot have.
TEST(PreferenceOptions, AreRefusedWhereTheyMeanNothing) {
  const auto refused = [](const char* part, const PreferenceOptions& options) {
    expect_refused(part, [&] { options.validate(); });
  };
  for (const Loss loss :
       {Loss::kNcaPair, Loss::kBcoPair, Loss::kSppoHard, Loss::kAot, Loss::kAotUnpaired,
        Loss::kApoZero, Loss::kApoDown, Loss::kSimpo, Loss::kOrpo})
    refused("f_divergence_type does not go with loss_type",
            {.loss_type = {Loss::kSigmoid, loss}, .f_divergence_type = FDivergence::kForwardKl});
  refused("f_divergence_type has no effect",
          {.loss_type = {Loss::kSft}, .f_divergence_type = FDivergence::kForwardKl});
  refused("f_alpha_divergence_coef", {.f_alpha_divergence_coef = 0.7});
  refused("f_alpha_divergence_coef", {.f_divergence_type = FDivergence::kAlphaDivergence,
                                      .f_alpha_divergence_coef = std::nan("")});
  for (const Loss loss : {Loss::kAot, Loss::kAotUnpaired, Loss::kSimpo, Loss::kOrpo, Loss::kSft})
    refused("use_weighting does not go with loss_type",
            {.loss_type = {Loss::kSigmoid, loss}, .use_weighting = true});
  for (const Loss loss : {Loss::kSimpo, Loss::kOrpo})
    refused("ld_alpha does not go with loss_type",
            {.loss_type = {Loss::kSigmoid, loss}, .ld_alpha = 0.5});
  refused("ld_alpha has no effect", {.loss_type = {Loss::kSft}, .ld_alpha = 0.5});
  for (const double alpha : {-0.1, 1.1})
    refused("ld_alpha", {.ld_alpha = alpha});
}

// alpha 1 is reverse_kl, alpha 0 forward_kl; ld_alpha 1 leaves all sums as they are.
TEST(PreferenceOptions, MeetAtTheirLimits) {
  const at::Tensor chosen = at::tensor({-3.0F, -5.0F}, at::kFloat);
  const at::Tensor rejected = at::tensor({-4.0F, -4.5F}, at::kFloat);
  const PreferenceInputs inputs{.policy_chosen = chosen,
                                .policy_rejected = rejected,
                                .reference_chosen = chosen * 1.2,
                                .reference_rejected = rejected * 1.1,
                                .chosen_tokens = at::ones({2}, at::kFloat),
                                .rejected_tokens = at::ones({2}, at::kFloat)};
  const auto loss = [&](FDivergence divergence, double alpha) {
    PreferenceOptions options{.f_divergence_type = divergence};
    if (divergence == FDivergence::kAlphaDivergence) options.f_alpha_divergence_coef = alpha;
    return preference_loss(inputs, options).loss_sum.item<double>();
  };
  using enum FDivergence;
  EXPECT_EQ(loss(kAlphaDivergence, 1), loss(kReverseKl, 0));
  EXPECT_NEAR(loss(kAlphaDivergence, 1.0001), loss(kReverseKl, 0), 1e-4);
  EXPECT_NEAR(loss(kAlphaDivergence, 0), loss(kForwardKl, 0), 1e-6);
  EXPECT_GT(std::abs(loss(kForwardKl, 0) - loss(kReverseKl, 0)), 1e-2);
  EXPECT_EQ(shared_length_weights(sequences(), 3, 1).min().item<double>(), 1);
}

// Against log_softmax of all logits in float64; in chunks, capped, of bfloat16 weights.
TEST(LogSumSquares, IsThatOfTheSoftmax) {
  const at::Tensor hidden = at::randn({11, 6}, at::kFloat) * 2;
  const at::Tensor weight = at::randn({23, 6}, at::kFloat);
  const auto want = [&](const at::Tensor& of, double softcap) {
    at::Tensor logits = at::matmul(hidden.to(at::kDouble), of.to(at::kDouble).t());
    if (softcap > 0) logits = (logits / softcap).tanh() * softcap;
    return logits.log_softmax(-1).exp().square().sum(-1).log().to(at::kFloat);
  };
  for (const double softcap : {0.0, 3.0})
    for (const int64_t chunk : {0, 4}) {
      const at::Tensor got = linear_log_sum_squares(hidden, weight, {}, softcap, chunk);
      EXPECT_LT((got - want(weight, softcap)).abs().max().item<double>(), 1e-5);
    }
  const at::Tensor rounded = weight.to(at::kBFloat16);
  EXPECT_LT((linear_log_sum_squares(hidden, rounded) - want(rounded, 0)).abs().max().item<double>(),
            1e-5);
  EXPECT_EQ(linear_log_sum_squares(hidden.narrow(0, 0, 0), weight).size(0), 0);
}

}  // namespace
}  // namespace retort::losses::preference_options

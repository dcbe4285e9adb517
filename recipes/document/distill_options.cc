#include "recipes/document/distill_options.h"

#include <cmath>
#include <set>

#include "recipes/document/reference_options.h"
#include "recipes/document/refuse.h"
#include "recipes/losses/policy.h"

namespace retort::recipes {
namespace {

using losses::DivergenceType;
using roles::PayloadKind;

// Refuses a field that was changed though the rest of the block makes it pointless.
void needs(bool in_effect, bool is_default, const std::string& name, const std::string& condition) {
  if (!in_effect && !is_default)
    refuse_option(name + " has no effect without " + condition + ": remove it or change that");
}

void validate_teachers(const std::vector<TeacherOptions>& teachers) {
  std::map<std::map<std::string, std::string>, double> sums;
  std::set<std::pair<std::string, std::map<std::string, std::string>>> seen;
  for (const auto& teacher : teachers) {
    if (teacher.role.empty() == teacher.cache.empty())
      refuse_option(teacher.role.empty()
                        ? "teachers: every entry needs a `role`, or a `cache`"
                        : "teachers: '" + teacher.role +
                              "' has a `cache` beside it; an entry has one of the two");
    if (!(teacher.weight > 0) || !std::isfinite(teacher.weight))
      refuse_option("teachers: the weight of '" + teacher.name() +
                    "' must be a finite number above 0");
    if (!seen.emplace(teacher.name(), teacher.when).second)
      refuse_option("teachers: '" + teacher.name() + "' stands there twice with the same `when`");
    sums[teacher.when] += teacher.weight;
  }
  // Entries with the same `when` are mixed for the same samples, so their weights are shares of one
  // loss.
  for (const auto& [when, sum] : sums) {
    if (std::abs(sum - 1) <= 1e-6) continue;
    std::string group;
    for (const auto& [key, value] : when)
      group += (group.empty() ? "" : ", ") + key + ": " + value;
    refuse_option("teachers: the weights" + (group.empty() ? "" : " of when: {" + group + "}") +
                  " must sum to 1, they sum to " + std::to_string(sum));
  }
}

}  // namespace

void DistillOptions::validate() const {
  validate_teachers(teachers);
  const DistillOptions defaults;
  const bool top_k = payload == PayloadKind::kTopK;
  const bool skewed =
      loss_type == DivergenceType::kSkewedKl || loss_type == DivergenceType::kSkewedReverseKl;

  validate_cross_tokenizer();
  validate_sampled_tokens();
  validate_draws();
  validate_staleness();
  if (loss_top_k <= 0)
    refuse_option("loss_top_k must be at least 1, got " + std::to_string(loss_top_k));
  needs(top_k, loss_top_k == defaults.loss_top_k, "loss_top_k", "payload: topk");
  needs(top_k, support == defaults.support, "support", "payload: topk");

  // The tail is what a top-k payload leaves open.
  needs(top_k, tail == defaults.tail, "tail", "payload: topk");
  if (tail != losses::Tail::kBucket && loss_type != DivergenceType::kForwardKl)
    refuse_option("tail: " + std::string(enum_name(tail)) +
                  " works with loss_type: forward_kl only (" + std::string(enum_name(loss_type)) +
                  " would be minimised by moving student mass out of the top-k); use tail: bucket");
  needs(top_k, payload_dtype == defaults.payload_dtype, "payload_dtype", "payload: topk");

  // Each divergence has parameters of its own, which mean nothing with another one.
  if (!(beta >= 0 && beta <= 1)) refuse_option("beta must be in [0, 1]");
  needs(loss_type == DivergenceType::kJsd, beta == defaults.beta, "beta", "loss_type: jsd");
  if (!(skew_lambda >= 0 && skew_lambda < 1)) refuse_option("skew_lambda must be in [0, 1)");
  needs(skewed, skew_lambda == defaults.skew_lambda, "skew_lambda",
        "loss_type: skewed_kl or skewed_reverse_kl");
  if (!(temperature > 0) || !std::isfinite(temperature))
    refuse_option("temperature must be a finite number above 0");

  // The remaining keys say how much of the loss it is, and of how many batches.
  if (kd_ratio == 0)
    refuse_option(
        "kd_ratio: 0 would run teachers whose answers count for nothing; write recipe: sft");
  if (!(kd_ratio > 0 && kd_ratio <= 1)) refuse_option("kd_ratio must be above 0 and at most 1");
  if (!(lmbda >= 0 && lmbda <= 1)) refuse_option("lmbda must be in [0, 1]");
  check_prefetch(prefetch);
}

// payload: target_logps is one number for each token that the student drew: the k1 estimate of
// reverse KL, which is a reward and no loss. Keys of other payloads and divergences have no place
// there.
void DistillOptions::validate_sampled_tokens() const {
  if (payload != PayloadKind::kTargetLogProbs) {
    if (use_policy_gradient)
      refuse_option(
          "use_policy_gradient needs payload: target_logps (the log-probability of each sampled "
          "token)");
    return;
  }
  losses::require_policy_gradient(losses::SampledKl::kK1, use_policy_gradient);
  if (loss_type != DivergenceType::kReverseKl)
    refuse_option(
        "payload: target_logps estimates reverse KL from the student's own tokens; write "
        "loss_type: reverse_kl");
  if (kd_ratio != 1.0)
    refuse_option("payload: target_logps has no cross-entropy part; write kd_ratio: 1.0");
  if (scale_by_temperature_squared)
    refuse_option(
        "scale_by_temperature_squared has no effect with use_policy_gradient, whose advantage is a "
        "difference of log-probabilities: remove it");
  if (teachers.size() > 1 || (!teachers.empty() && !teachers[0].when.empty()))
    refuse_option("payload: target_logps works with one teacher for all samples");
}

// payload: sampled is an unbiased estimate of forward KL; a nonlinear function of it would be
// biased.
void DistillOptions::validate_draws() const {
  constexpr int64_t kMost = 1 << 20;
  const DistillOptions defaults;
  const bool draws = payload == PayloadKind::kSampled;
  if (num_samples < 1 || num_samples > kMost)
    refuse_option("num_samples must be in [1, " + std::to_string(kMost) + "], got " +
                  std::to_string(num_samples));
  needs(draws, num_samples == defaults.num_samples, "num_samples", "payload: sampled");
  needs(draws, replacement == defaults.replacement, "replacement", "payload: sampled");
  if (draws && loss_type != DivergenceType::kForwardKl)
    refuse_option("payload: sampled works with loss_type: forward_kl only (" +
                  std::string(enum_name(loss_type)) +
                  " is a nonlinear function of the estimate, and would be biased)");
}

// Only tokens that a policy gradient takes for the student's own need a correction: a divergence at
// given prefixes is right whoever drew them.
void DistillOptions::validate_staleness() const {
  const DistillOptions defaults;
  const bool corrects = sampling_correction != defaults.sampling_correction;
  if (max_staleness < 0)
    refuse_option("max_staleness must be at least 0, got " + std::to_string(max_staleness));
  needs(max_staleness > 0, !corrects, "sampling_correction", "max_staleness");
  needs(use_policy_gradient, !corrects, "sampling_correction", "use_policy_gradient");
  needs(corrects, importance_sampling_cap == defaults.importance_sampling_cap,
        "importance_sampling_cap", "sampling_correction");
  if (max_staleness > 0 && use_policy_gradient && !corrects)
    refuse_option(
        "use_policy_gradient with max_staleness learns from tokens of older weights as if they "
        "were "
        "the student's own: write sampling_correction: sequence_mask (TRL's), or another one");
  if (corrects)
    losses::PolicyOptions{.sampling_correction = sampling_correction,
                          .importance_sampling_cap = importance_sampling_cap}
        .validate();
}

// Keys of a comparison id by id have no meaning where the two sides have other ids.
void DistillOptions::validate_cross_tokenizer() const {
  const DistillOptions defaults;
  const std::string way = "cross_tokenizer: " + std::string(enum_name(cross_tokenizer));
  const bool gold_way = cross_tokenizer == CrossTokenizer::kGold;
  const bool sorts = gold_way || cross_tokenizer == CrossTokenizer::kUld;
  const bool crosses = crosses_tokenizers();
  needs(crosses, teacher_template == defaults.teacher_template, "teacher_template",
        "cross_tokenizer");
  needs(sorts, uld_normalize == defaults.uld_normalize, "uld_normalize",
        "cross_tokenizer: uld or gold");
  needs(gold_way, !gold.matched_weight && !gold.unmatched_weight && gold.beta == defaults.gold.beta,
        "gold", "cross_tokenizer: gold");
  if (!crosses) return;

  // The weights of both parts are given together, for one of them says nothing about the other.
  if (!(gold.beta >= 0 && gold.beta <= 1)) refuse_option("gold.beta must be in [0, 1]");
  if (gold.matched_weight.has_value() != gold.unmatched_weight.has_value())
    refuse_option("gold: write matched_weight and unmatched_weight, or neither");
  if (gold.matched_weight && *gold.matched_weight + *gold.unmatched_weight == 0)
    refuse_option("gold: both weights are 0, so that the teacher's answers count for nothing");
  for (const auto& weight : {gold.matched_weight, gold.unmatched_weight})
    if (weight && !(*weight >= 0 && std::isfinite(*weight)))
      refuse_option("gold: weights must be finite numbers, not below 0");

  // Each way needs one kind of answer.
  if (cross_tokenizer == CrossTokenizer::kSpans && !use_policy_gradient)
    refuse_option(way +
                  " is a policy gradient on the student's own draws: write recipe: "
                  "on_policy_distill, use_policy_gradient: true, payload: target_logps and "
                  "loss_type: reverse_kl; uld and gold need no draws");
  if (sorts && use_policy_gradient)
    refuse_option(way +
                  " is no policy gradient: write cross_tokenizer: spans, or leave "
                  "use_policy_gradient out");
  if (sorts && payload == PayloadKind::kSampled)
    refuse_option(way +
                  ": payload sampled has no distribution to sort; hidden_states, full or "
                  "topk does");
  if (gold_way && payload == PayloadKind::kTopK)
    refuse_option(way +
                  ": payload topk leaves most tokens that both know unsaid; hidden_states "
                  "or full does, or cross_tokenizer: uld");
  if (teachers.size() > 1 || (!teachers.empty() && !teachers[0].when.empty()))
    refuse_option(way + " works with one teacher for all samples");
  if (!teachers.empty() && teachers[0].is_cached())
    refuse_option(way + ": no cache holds what a teacher says of its own tokens; name a role");

  // What shapes a divergence id by id is refused rather than left without effect.
  if (!sorts) return;
  const auto refuse_idle = [&](bool is_default, const char* name) {
    if (!is_default)
      refuse_option(std::string(name) + " has no effect with " + way + ": remove it");
  };
  refuse_idle(loss_type == defaults.loss_type, "loss_type");
  refuse_idle(tail == defaults.tail, "tail");
  refuse_idle(support == defaults.support, "support");
  refuse_idle(scale_by_temperature_squared == defaults.scale_by_temperature_squared,
              "scale_by_temperature_squared");
}

losses::DivergenceOptions DistillOptions::divergence() const {
  losses::DivergenceOptions options;
  options.type = loss_type;
  options.beta = beta;
  options.skew_lambda = skew_lambda;
  options.temperature = temperature;
  options.tail = tail;
  options.scale_by_temperature_squared = scale_by_temperature_squared;
  options.kd_ratio = kd_ratio;
  return options;
}

roles::PayloadSpec DistillOptions::payload_spec(int64_t seed) const {
  roles::PayloadSpec spec;
  spec.kind = payload;
  spec.top_k = loss_top_k;
  spec.temperature = temperature;
  spec.support = support;
  spec.bfloat16 = payload_dtype == PayloadDtype::kBfloat16;
  if (payload != PayloadKind::kSampled) return spec;
  spec.num_samples = num_samples;
  spec.replacement = replacement;
  spec.seed = static_cast<uint64_t>(seed);
  return spec;
}

}  // namespace retort::recipes

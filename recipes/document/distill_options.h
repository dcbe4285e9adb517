// A recipe's `distill:` block: which teachers, what they send, and the divergence that the student
// minimises.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/options.h"
#include "recipes/losses/divergence.h"
#include "recipes/losses/policy.h"
#include "roles/payload/payload.h"

namespace retort::recipes {

// The dtype of log-probabilities on the wire.
enum class PayloadDtype { kFloat32, kBfloat16 };

// How a teacher with another tokenizer than the student's is compared with (docs/losses.md).
enum class CrossTokenizer {
  kNone,   // it has the student's tokenizer
  kUld,    // sorted probabilities of tokens that end at the same bytes
  kGold,   // tokens that both know by name, the others sorted
  kSpans,  // log-probabilities of the same bytes, of what the student drew
};

// Whose chat template a teacher with another tokenizer reads conversations by.
enum class TeacherTemplate { kOwn, kStudent };

// What `cross_tokenizer: gold` weighs its two parts with.
struct GoldOptions {
  std::optional<double> matched_weight, unmatched_weight;
  double beta = 0.5;

  template <class V>
  void fields(V& visit) {
    visit("matched_weight", matched_weight,
          "of the divergence over tokens that both know; null: their share of the teacher's "
          "vocabulary");
    visit("unmatched_weight", unmatched_weight,
          "of the distance between the others, sorted; null: 1 less the share above");
    visit("beta", beta,
          "weight of the teacher in the mixture of the first part, in [0, 1]; 0 and 1 are forward "
          "and reverse KL");
  }
};

// A role that answers, or a cache of what one has answered.
struct TeacherOptions {
  std::string role;
  std::string cache;    // a folder
  double weight = 1.0;  // the weights of teachers with the same `when` sum to 1
  // only samples whose fields have these values; empty: every sample
  std::map<std::string, std::string> when;

  template <class V>
  void fields(V& visit) {
    visit("role", role, "a role of `roles:`; empty: a `cache`");
    visit("cache", cache,
          "a folder that `retort cache` wrote, with a teacher's payloads for these rows; empty: a "
          "`role`");
    visit("weight", weight,
          "share of this teacher's loss; the weights of teachers with the same `when` sum to 1");
    visit("when", when,
          "only samples whose fields have these values, e.g. {domain: math}; empty: every sample");
  }
  bool is_cached() const { return !cache.empty(); }
  const std::string& name() const { return is_cached() ? cache : role; }
};

// A field that the chosen payload or loss_type does not read must keep its default: anything else
// is refused, not ignored.
struct DistillOptions {
  std::vector<TeacherOptions> teachers;  // empty: the role `teacher`, once resolved
  roles::PayloadKind payload = roles::PayloadKind::kHiddenStates;
  PayloadDtype payload_dtype = PayloadDtype::kFloat32;
  int64_t loss_top_k = 64;
  int64_t num_samples = 64;
  bool replacement = true;
  roles::Support support = roles::Support::kTeacher;
  losses::Tail tail = losses::Tail::kBucket;
  losses::DivergenceType loss_type = losses::DivergenceType::kForwardKl;
  double beta = 0.5;
  double skew_lambda = 0.1;
  double temperature = 1.0;
  bool scale_by_temperature_squared = false;
  double kd_ratio = 1.0;
  double lmbda = 0.0;
  bool use_policy_gradient = false;
  int64_t prefetch = 2;
  int64_t max_staleness = 0;
  losses::SamplingCorrection sampling_correction = losses::SamplingCorrection::kNone;
  double importance_sampling_cap = 3.0;
  bool eval_kd_loss = true;
  CrossTokenizer cross_tokenizer = CrossTokenizer::kNone;
  TeacherTemplate teacher_template = TeacherTemplate::kOwn;
  bool uld_normalize = false;
  GoldOptions gold;

  template <class V>
  void fields(V& visit) {
    visit("teachers", teachers,
          "who teaches; several: weighted sum of losses, or routing by fields of the sample");
    visit("payload", payload, "what a teacher sends for each target token");
    visit(
        "payload_dtype", payload_dtype,
        "log-probabilities on the wire; payload: topk only (hidden states travel in the teacher's "
        "dtype, payload: full in float32)");
    visit("loss_top_k", loss_top_k, "ids per target token; payload: topk only");
    visit("num_samples", num_samples, "ids drawn for each target token; payload: sampled only");
    visit(
        "replacement", replacement,
        "whether an id may be drawn again, each then with weight 1 / num_samples; payload: sampled "
        "only");
    visit("support", support,
          "whose top-k ids; union: both sides', each id once. The student names its ids after its "
          "own "
          "forward pass, and the teacher scores them; payload: topk only");
    visit("tail", tail,
          "the mass outside the top-k; payload: topk only, renormalize and drop: forward_kl only");
    visit("loss_type", loss_type, "divergence between teacher and student");
    visit("beta", beta, "weight of the teacher in the mixture, in [0, 1]; jsd only");
    visit("skew_lambda", skew_lambda, "skew, in [0, 1); skewed_kl and skewed_reverse_kl only");
    visit("temperature", temperature, "divides the logits of both sides inside the divergence");
    visit("scale_by_temperature_squared", scale_by_temperature_squared,
          "multiply the divergence by temperature squared");
    visit("kd_ratio", kd_ratio, "loss = (1 - kd_ratio) * cross-entropy + kd_ratio * divergence");
    visit("lmbda", lmbda,
          "share of on-policy batches, whose completions the student draws; needs `generation`");
    visit("use_policy_gradient", use_policy_gradient,
          "reverse KL on the sampled tokens as a policy gradient; payload: target_logps, on-policy "
          "only");
    visit("prefetch", prefetch, "batches whose teacher answers may be in flight");
    visit(
        "max_staleness", max_staleness,
        "steps by which an on-policy batch may be drawn before its own, with the weights of then, "
        "while the student learns from earlier ones; from 2 on teachers answer meanwhile, too");
    visit("sampling_correction", sampling_correction,
          "what becomes of tokens whose probability has changed since they were drawn: weighted by "
          "the ratio within bounds, or left out; use_policy_gradient with max_staleness only");
    visit("importance_sampling_cap", importance_sampling_cap, "cap of sampling_correction");
    visit("eval_kd_loss", eval_kd_loss,
          "ask the teachers about the rows of data.eval too, for the divergence there; false: an "
          "evaluation has the cross-entropy alone, and costs no teacher anything");

    // A teacher with another tokenizer is compared with in other ways.
    visit("cross_tokenizer", cross_tokenizer,
          "how a teacher with another tokenizer is compared with; none: it has the student's. uld "
          "and gold: distributions where both tokenizers end a token; spans: use_policy_gradient "
          "by bytes");
    visit("teacher_template", teacher_template,
          "by which a teacher with another tokenizer reads conversations; cross_tokenizer only");
    visit("uld_normalize", uld_normalize,
          "leave out how probable a group's earlier tokens are; uld and gold only");
    visit("gold", gold, "the two parts of cross_tokenizer: gold");
  }
  // kInvalidArgument naming the field: ranges, weights, fields without effect, what is not in this
  // version.
  void validate() const;

  void validate_sampled_tokens() const;
  void validate_draws() const;
  void validate_cross_tokenizer() const;
  void validate_staleness() const;
  // Whether each row is read by the teacher's tokenizer too.
  bool crosses_tokenizers() const { return cross_tokenizer != CrossTokenizer::kNone; }
  // The loss as recipes/losses wants it (common_vocab and chunk_tokens are the caller's).
  losses::DivergenceOptions divergence() const;
  // The request as roles/ wants it (common_vocab is the caller's). `seed`: the recipe's.
  roles::PayloadSpec payload_spec(int64_t seed) const;
};

}  // namespace retort::recipes

template <>
struct retort::EnumNames<retort::recipes::PayloadDtype> {
  using E = retort::recipes::PayloadDtype;
  static constexpr std::array<std::pair<std::string_view, E>, 2> values{
      {{"float32", E::kFloat32}, {"bfloat16", E::kBfloat16}}};
};
template <>
struct retort::EnumNames<retort::recipes::CrossTokenizer> {
  using E = retort::recipes::CrossTokenizer;
  static constexpr std::array<std::pair<std::string_view, E>, 4> values{
      {{"none", E::kNone}, {"uld", E::kUld}, {"gold", E::kGold}, {"spans", E::kSpans}}};
};
template <>
struct retort::EnumNames<retort::recipes::TeacherTemplate> {
  using E = retort::recipes::TeacherTemplate;
  static constexpr std::array<std::pair<std::string_view, E>, 2> values{
      {{"own", E::kOwn}, {"student", E::kStudent}}};
};

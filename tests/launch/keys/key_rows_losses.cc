// Rows of the keys of `distill:`, `dpo:`, `kto:` and `reward_model:`.
#include "tests/launch/keys/key_bases.h"
#include "tests/launch/keys/key_observables.h"
#include "tests/launch/keys/key_rows.h"

namespace retort::test {
namespace {

using namespace observed;

std::vector<KeyRow> teacher_rows() {
  const std::string test = "tests/recipes/runs/routing_run_test.cc";
  const std::string ab =
      "distill.teachers=[{role: teacher, weight: 0.5}, {role: second, weight: 0.5}]";
  const std::string ba =
      "distill.teachers=[{role: second, weight: 0.5}, {role: teacher, weight: 0.5}]";
  return {
      refused(kSftBase, "distill={kd_ratio: 1.0}", "this block belongs to recipe: distill"),
      acts(kDistillBase, ba, roles, {"roles.second={model: FOLDER/teacher}", ab}),
      in_run("distill.teachers[].role", test, "[{role: teacher, weight: 0.25}, {role: second,"),
      in_run("distill.teachers[].cache", "tests/recipes/run_support/cache_support.cc",
             "distill.teachers=[{cache: "),
      in_run("distill.teachers[].weight", test, "{role: second, weight: 0.75}]"),
      in_run("distill.teachers[].when", test, "{role: teacher, when: {domain: a}}"),
  };
}

std::vector<KeyRow> payload_rows() {
  const std::string topk = "distill.payload=topk";
  const std::string without = "has no effect without payload: topk";
  return {
      acts(kDistillBase, "distill.payload=full", payload),
      acts(kDistillBase, "distill.payload=full", plan),
      acts(kDistillBase, "distill.payload_dtype=bfloat16", payload, {topk}),
      refused(kDistillBase, "distill.payload_dtype=bfloat16", without),
      // once dead
      refused(kDistillBase, "distill.payload_dtype=bfloat16", without, {"distill.payload=full"}),
      acts(kDistillBase, "distill.loss_top_k=8", payload, {topk}),
      refused(kDistillBase, "distill.loss_top_k=8", without),
      in_run("distill.loss_top_k", "tests/launch/recipe/vocabulary_warning_test.cc",
             "loss_top_k=1000000"),
      acts(kDistillBase, "distill.support=student", payload, {topk}),
      acts(kDistillBase, "distill.support=union", plan, {topk}),
      refused(kDistillBase, "distill.support=student", without),
      acts(kDistillBase, "distill.num_samples=8", payload, {"distill.payload=sampled"}),
      refused(kDistillBase, "distill.num_samples=8", "has no effect without payload: sampled"),
      acts(kDistillBase, "distill.replacement=false", payload, {"distill.payload=sampled"}),
      refused(kDistillBase, "distill.replacement=false", "has no effect without payload: sampled"),
      refused(kDistillBase, "distill.loss_type=reverse_kl", "works with loss_type: forward_kl only",
              {"distill.payload=sampled"}),
      acts(kDistillBase, "distill.tail=drop", divergence, {topk}),
      refused(kDistillBase, "distill.tail=drop", without),

      acts(kDistillBase, "distill.prefetch=4", plan),
      in_run("distill.eval_kd_loss", "tests/recipes/runs/evaluation_run_test.cc",
             "distill.eval_kd_loss=false"),
      refused(kDistillBase, "distill.eval_kd_loss=false", "has no effect without data.eval"),
      // once dead
      refused(kOnPolicyBase, "distill.prefetch=4", "has no effect with lmbda above 0"),
  };
}

std::vector<KeyRow> divergence_rows() {
  const std::vector<std::string> sampled{"distill.payload=target_logps",
                                         "distill.use_policy_gradient=true"};
  const std::vector<std::string> half{"roles.generator={model: FOLDER/student}",
                                      "generation={max_new_tokens: 4}", "distill.lmbda=0.5"};
  return {
      acts(kDistillBase, "distill.loss_type=reverse_kl", divergence),
      acts(kDistillBase, "distill.beta=0.3", divergence, {"distill.loss_type=jsd"}),
      refused(kDistillBase, "distill.beta=0.3", "has no effect without loss_type: jsd"),
      acts(kDistillBase, "distill.skew_lambda=0.3", divergence, {"distill.loss_type=skewed_kl"}),
      refused(kDistillBase, "distill.skew_lambda=0.3", "has no effect without loss_type: skewed"),
      acts(kDistillBase, "distill.temperature=2", divergence),
      acts(kDistillBase, "distill.temperature=2", payload),
      acts(kDistillBase, "distill.scale_by_temperature_squared=true", divergence),
      // once dead
      refused(kOnPolicyBase, "distill.scale_by_temperature_squared=true",
              "has no effect with use_policy_gradient", sampled),

      acts(kDistillBase, "distill.kd_ratio=0.5", divergence),
      // once dead: teachers answered, and their answers counted for nothing
      refused(kDistillBase, "distill.kd_ratio=0", "write recipe: sft"),
      refused(kOnPolicyBase, "distill.kd_ratio=0.5", "must be 1 where all batches are on-policy"),
      acts(kDistillBase, "distill.kd_ratio=0.7", divergence, half),
      acts(kDistillBase, "distill.lmbda=0.9", on_policy_steps, half),
      refused(kOnPolicyBase, "distill.lmbda=0.9", "on_policy_distill is distill with lmbda: 1.0"),
      in_run("distill.use_policy_gradient", "tests/recipes/runs/policy_run_test.cc",
             "on_policy_gradient"),
      refused(kDistillBase, "distill.use_policy_gradient=true", "needs payload: target_logps"),
  };
}

std::vector<KeyRow> cross_tokenizer_rows() {
  const std::string test = "tests/recipes/runs/cross_tokenizer_run_test.cc";
  const std::string goldens = "tests/recipes/make_cross_goldens.py";
  return {
      in_run("distill.cross_tokenizer", goldens, "\"cross_tokenizer\": \"uld\""),
      refused(kDistillBase, "distill.cross_tokenizer=spans", "on the student's own draws"),
      refused(kDistillBase, "distill.cross_tokenizer=uld", "has no distribution to sort",
              {"distill.payload=sampled"}),
      refused(kDistillBase, "distill.cross_tokenizer=gold", "loss_type has no effect with",
              {"distill.loss_type=reverse_kl"}),
      in_run("distill.teacher_template", test, "distill.teacher_template=student"),
      refused(kDistillBase, "distill.teacher_template=student",
              "has no effect without cross_tokenizer"),
      in_run("distill.uld_normalize", test, "distill.uld_normalize=true"),
      refused(kDistillBase, "distill.uld_normalize=true",
              "has no effect without cross_tokenizer: uld or gold"),
      in_run("distill.gold.matched_weight", goldens, "\"matched_weight\": 0.7"),
      in_run("distill.gold.unmatched_weight", goldens, "\"unmatched_weight\": 0.3"),
      in_run("distill.gold.beta", goldens, "\"beta\": 1.0"),
      refused(kDistillBase, "distill.gold.beta=0.2", "has no effect without cross_tokenizer: gold"),
  };
}

std::vector<KeyRow> staleness_rows() {
  const std::string test = "tests/recipes/runs/on_policy_resume_test.cc";
  const std::string without = "has no effect without max_staleness";
  return {
      in_run("distill.max_staleness", test, "{\"max_staleness\", \"2\"}"),
      refused(kDistillBase, "distill.max_staleness=1", "has no effect without on-policy batches"),
      in_run("distill.sampling_correction", test, "{\"sampling_correction\", \"sequence_mask\"}"),
      refused(kOnPolicyBase, "distill.sampling_correction=token_mask", without),
      in_run("distill.importance_sampling_cap", test, "{\"importance_sampling_cap\", \"2\"}"),
      refused(kOnPolicyBase, "distill.importance_sampling_cap=2",
              "has no effect without sampling_correction"),
  };
}

std::vector<KeyRow> dpo_rows() {
  const std::vector<std::string> simpo{"dpo.loss_type=simpo",
                                       "roles={student: {model: FOLDER/student}}"};
  const std::string no_reference = "no loss of this recipe compares with a reference";
  return {
      refused(kSftBase, "dpo={beta: 0.1}", "this block belongs to recipe: dpo"),
      acts(kDpoBase, "dpo.beta=0.5", preference),
      acts(kDpoBase, "dpo.loss_type=ipo", preference),
      acts(kDpoBase, "dpo.loss_weights=[2.0]", preference),
      acts(kDpoBase, "dpo.label_smoothing=0.1", preference, {"dpo.loss_type=robust"}),
      acts(kDpoBase, "dpo.label_smoothing=0.1", preference, {"dpo.loss_type=aot"}),
      refused(kDpoBase, "dpo.label_smoothing=0.1", "only loss_type robust, cdpo, exo_pair, aot"),
      acts(kDpoBase, "dpo.discopop_tau=0.1", preference, {"dpo.loss_type=discopop"}),
      refused(kDpoBase, "dpo.discopop_tau=0.1", "only loss_type discopop reads it"),
      acts(kDpoBase, "dpo.loss_type=aot_unpaired", preference),
      acts(kDpoBase, "dpo.f_divergence_type=js_divergence", preference),
      refused(kDpoBase, "dpo.f_divergence_type=js_divergence",
              "does not go with loss_type nca_pair", {"dpo.loss_type=[sigmoid, nca_pair]"}),
      refused(kDpoBase, "dpo.f_divergence_type=forward_kl", "no loss_type compares completions",
              {"dpo.loss_type=sft", "roles={student: {model: FOLDER/student}}"}),
      acts(kDpoBase, "dpo.f_alpha_divergence_coef=0.7", preference,
           {"dpo.f_divergence_type=alpha_divergence"}),
      refused(kDpoBase, "dpo.f_alpha_divergence_coef=0.7",
              "only f_divergence_type alpha_divergence reads it"),
      acts(kDpoBase, "dpo.use_weighting=true", preference),
      refused(kDpoBase, "dpo.use_weighting=true", "does not go with loss_type aot",
              {"dpo.loss_type=aot"}),
      acts(kDpoBase, "dpo.ld_alpha=0.5", preference),
      refused(kDpoBase, "dpo.ld_alpha=1.5", "must be in [0, 1]"),
      refused(kDpoBase, "dpo.ld_alpha=0.5", "does not go with loss_type simpo", simpo),
      acts(kDpoBase, "dpo.simpo_gamma=1.0", preference, simpo),
      refused(kDpoBase, "dpo.simpo_gamma=1.0", "only loss_type simpo reads it"),

      refused(kDpoBase, "dpo.reference=other", "'other' is not declared under roles"),
      acts(kDpoBase, "dpo.reference_cache=FOLDER/cache", inputs),
      acts(kDpoBase, "dpo.prefetch=5", preference_prefetch),
      // once dead: losses without a reference
      refused(kDpoBase, "dpo.reference=other", no_reference, simpo),
      refused(kDpoBase, "dpo.reference_cache=FOLDER/cache", no_reference, simpo),
      refused(kDpoBase, "dpo.prefetch=5", no_reference, simpo),
  };
}

std::vector<KeyRow> kto_rows() {
  return {
      refused(kSftBase, "kto={beta: 0.1}", "this block belongs to recipe: kto"),
      acts(kKtoBase, "kto.beta=0.5", kto),
      acts(kKtoBase, "kto.loss_type=apo_zero_unpaired", kto),
      acts(kKtoBase, "kto.desirable_weight=2", kto),
      acts(kKtoBase, "kto.undesirable_weight=2", kto),
      refused(kKtoBase, "kto.reference=other", "'other' is not declared under roles"),
      acts(kKtoBase, "kto.reference_cache=FOLDER/cache", inputs),
      acts(kKtoBase, "kto.prefetch=5", kto_prefetch),
  };
}

std::vector<KeyRow> reward_model_rows() {
  const std::string test = "tests/recipes/runs/reward_run_test.cc";
  return {
      refused(kSftBase, "reward_model={num_labels: 1}",
              "this block belongs to recipe: reward_model"),
      in_run("reward_model.loss_type", test, "loss_type=bradley_terry"),
      refused(kRewardModelBase, "reward_model.loss_type=hinge", "bradley_terry"),
      acts(kRewardModelBase, "reward_model.num_labels=3", plan),
      refused(kRewardModelBase, "reward_model.num_labels=0", "num_labels must be 1 to"),
      refused(kRewardModelBase, "reward_model.num_labels=3", "is a classifier of 2 labels",
              {"roles.student.model=FOLDER/scorer", "reward_model.num_labels=2"}),
      acts(kRewardModelBase, "reward_model.center_rewards_coefficient=0.1", bradley_terry),
      refused(kRewardModelBase, "reward_model.center_rewards_coefficient=-1",
              "center_rewards_coefficient must be 0 or more"),
      in_run("reward_model.use_margin", test, "reward_model.use_margin=true"),
      // Its samples are pairs.
      refused(kRewardModelBase, "data.packing=false", "pairs are always laid end to end"),
  };
}

std::vector<KeyRow> sft_rows() {
  return {
      acts(kSftBase, "sft={loss_type: dft}", cross_entropy),
      refused(kDpoBase, "sft={loss_type: dft}", "belongs to recipe: sft"),
      acts(kSftBase, "sft.loss_type=dft", cross_entropy),
      in_run("sft.loss_type", "tests/recipes/objectives/objective_test.cc",
             "CrossEntropyType::kDft"),
      refused(kSftBase, "sft.loss_type=chunked_nll", "is not one of nll | dft"),
      refused(kRejectionBase, "sft.loss_type=dft", "belongs to recipe: sft"),
  };
}

}  // namespace

std::vector<KeyRow> loss_rows() {
  std::vector<KeyRow> all;
  for (const auto& part :
       {sft_rows, teacher_rows, payload_rows, divergence_rows, cross_tokenizer_rows, staleness_rows,
        dpo_rows, kto_rows, reward_model_rows})
    for (KeyRow& row : part())
      all.push_back(std::move(row));
  return all;
}

}  // namespace retort::test

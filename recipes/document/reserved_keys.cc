#include "recipes/document/reserved_keys.h"

#include <array>
#include <utility>

namespace retort::recipes {
namespace {

using Entry = std::pair<std::string_view, std::string_view>;

// `*` stands for one part of a path. The text completes "... not in this version".
constexpr std::array<Entry, 7> kLater{{
    {"recipe=ppo", "PPO with a critic (grpo learns on-policy without one) is"},
    {"roles.*.attach", "attaching to a served role is"},
    {"roles.*.load_in_4bit", "a quantized base is"},
    {"roles.*.load_in_8bit", "a quantized base is"},
    {"roles.*.world.cp", "context parallelism is"},
    {"roles.*.world.ep", "expert parallelism is"},
    {"train.optim", "another optimizer than AdamW is"},
}};

// Names that TRL, transformers and verl have for something, wherever they stand, with what it is
// called here. They are sorted, so that one that is there already is found.
constexpr std::array<Entry, 31> kElsewhere{{
    {"batch_size", "the batch is train.per_device_train_batch_size or train.tokens_per_batch"},
    {"bf16", "a role's numbers are roles.<name>.dtype: bfloat16"},
    {"cliprange", "the clip is grpo.epsilon"},

    {"dataset_name", "data are files: data.train: [FILE]"},
    {"dataset_text_field", "columns are named by data.train: [{path: FILE, columns: {...}}]"},
    {"deepspeed", "how a role is split is roles.<name>.world"},
    {"epochs", "it is train.num_train_epochs"},
    {"eval_strategy", "it is train.eval_steps, with data.eval"},
    {"evaluation_strategy", "it is train.eval_steps, with data.eval"},

    {"fp16", "a role's numbers are roles.<name>.dtype: float16"},
    {"fsdp", "how a role is split is roles.<name>.world"},

    {"kl_coef", "the KL's weight is grpo.beta"},
    {"logging_dir", "all files of a run lie under output_dir"},
    {"lora_r", "it is roles.student.lora: {r: 16}"},
    {"lr", "it is train.learning_rate"},

    {"max_completion_length", "it is generation.max_new_tokens"},
    {"max_prompt_length", "prompt and completion share data.max_length"},
    {"max_seq_length", "it is data.max_length"},
    {"model_name_or_path", "it is roles.student.model"},

    {"num_epochs", "it is train.num_train_epochs"},
    {"peft_config", "it is roles.student.lora: {r: 16}"},
    {"ref_model",
     "the reference is a role, named by dpo.reference, kto.reference or grpo.reference"},
    {"report_to",
     "metrics.jsonl and TensorBoard are always written; launch.metrics_command hands them on, to "
     "wandb or MLflow too (docs/python.md)"},
    {"reward_funcs", "rewards are the list `rewards`"},

    {"save_strategy", "it is train.save_steps"},
    {"train_file", "it is data.train: [FILE]"},
    {"use_peft", "an adapter is roles.student.lora: {r: 16}"},
    {"use_vllm", "an engine is a role: roles.generator.external: {engine: vllm, url: URL}"},
    {"vllm_importance_sampling_cap", "it is grpo.importance_sampling_cap"},
    {"vllm_importance_sampling_correction", "it is grpo.sampling_correction"},
    {"warmup", "it is train.warmup_steps or train.warmup_ratio"},
}};

bool matches(std::string_view pattern, std::string_view name) {
  while (!pattern.empty()) {
    if (pattern.starts_with('*')) {
      pattern.remove_prefix(1);
      const size_t end = name.find('.');
      if (end == 0 || end == std::string_view::npos) return false;
      name.remove_prefix(end);
    } else if (name.empty() || pattern.front() != name.front()) {
      return false;
    } else {
      pattern.remove_prefix(1);
      name.remove_prefix(1);
    }
  }
  return name.empty();
}

}  // namespace

std::string reserved_key(std::string_view name) {
  for (const auto& [pattern, what] : kLater)
    if (matches(pattern, name)) return std::string(what) + " not in this version";

  const std::string_view last = name.substr(name.rfind('.') + 1);
  for (const auto& [foreign, here] : kElsewhere)
    if (last == foreign) return "unknown key; " + std::string(here);
  return "";
}

}  // namespace retort::recipes

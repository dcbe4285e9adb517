#include "tests/launch/keys/key_bases.h"

#include <fstream>
#include <string>

#include "tests/data/word_tokenizer.h"

namespace retort::test {
namespace fs = std::filesystem;

const char* const kSftBase = R"(recipe: sft
output_dir: run
roles:
  student: {model: FOLDER/student}
data:
  train: [{path: FOLDER/train.jsonl}, {path: FOLDER/more.jsonl}]
  eval: [{path: FOLDER/more.jsonl}]
  max_length: 16
train: {max_steps: 10, per_device_train_batch_size: 2, gradient_accumulation_steps: 2}
)";

const char* const kDistillBase = R"(recipe: distill
output_dir: run
roles:
  student: {model: FOLDER/student}
  teacher: {model: FOLDER/teacher}
data: {train: [{path: FOLDER/train.jsonl}], max_length: 16}
train: {max_steps: 10, per_device_train_batch_size: 2}
distill: {teachers: [{role: teacher}]}
)";

const char* const kOnPolicyBase = R"(recipe: on_policy_distill
output_dir: run
roles:
  student: {model: FOLDER/student}
  teacher: {model: FOLDER/teacher}
  generator: {model: FOLDER/student}
data: {train: [{path: FOLDER/train.jsonl}], max_length: 16}
train: {max_steps: 10, per_device_train_batch_size: 2}
generation: {max_new_tokens: 4}
distill: {teachers: [{role: teacher}], loss_type: reverse_kl}
)";

const char* const kDpoBase = R"(recipe: dpo
output_dir: run
roles:
  student: {model: FOLDER/student}
  reference: {model: FOLDER/student}
data: {train: [{path: FOLDER/train.jsonl}], max_length: 16}
train: {max_steps: 10, per_device_train_batch_size: 2}
dpo: {beta: 0.1}
)";

const char* const kKtoBase = R"(recipe: kto
output_dir: run
roles:
  student: {model: FOLDER/student}
  reference: {model: FOLDER/student}
data: {train: [{path: FOLDER/train.jsonl}], max_length: 16}
train: {max_steps: 10, per_device_train_batch_size: 2}
kto: {beta: 0.1}
)";

const char* const kRewardModelBase = R"(recipe: reward_model
output_dir: run
roles:
  student: {model: FOLDER/student}
data: {train: [{path: FOLDER/train.jsonl}], max_length: 16}
train: {max_steps: 10, per_device_train_batch_size: 2}
reward_model: {num_labels: 1}
)";

const char* const kGrpoBase = R"(recipe: grpo
output_dir: run
roles:
  student: {model: FOLDER/student}
  generator: {model: FOLDER/student}
data: {train: [{path: FOLDER/train.jsonl}], max_length: 16}
train: {max_steps: 10, per_device_train_batch_size: 2}
generation: {num_generations: 2, max_new_tokens: 4}
rewards: [{type: length, min: 2}]
grpo: {loss_type: dapo}
)";

const char* const kToolsBase = R"(recipe: grpo
output_dir: run
roles:
  student: {model: FOLDER/student}
  generator: {model: FOLDER/student}
  tools: {environment: {command: [python3, tools.py]}}
data: {train: [{path: FOLDER/chat.jsonl}], max_length: 16, chat_template: FOLDER/tools.jinja}
train: {max_steps: 10, per_device_train_batch_size: 2}
generation: {num_generations: 2, max_new_tokens: 4}
environment: {max_tokens: 8}
rewards: [{type: environment}]
)";

const char* const kRejectionBase = R"(recipe: rejection_sampling
output_dir: run
roles:
  student: {model: FOLDER/student}
  generator: {model: FOLDER/student}
data: {train: [{path: FOLDER/train.jsonl}], max_length: 16}
train: {max_steps: 10, per_device_train_batch_size: 2}
generation: {num_generations: 2, max_new_tokens: 4}
rewards: [{type: length, min: 2}]
rejection_sampling: {rounds: 2}
)";

const char* const kTaughtToolsBase = R"(recipe: on_policy_distill
output_dir: run
roles:
  student: {model: FOLDER/student}
  teacher: {model: FOLDER/teacher}
  generator: {model: FOLDER/student}
  tools: {environment: {command: [python3, tools.py]}}
data: {train: [{path: FOLDER/chat.jsonl}], max_length: 16, chat_template: FOLDER/tools.jinja}
train: {max_steps: 10, per_device_train_batch_size: 2}
generation: {max_new_tokens: 4}
environment: {max_tokens: 8}
distill: {teachers: [{role: teacher}], loss_type: reverse_kl}
)";

const char* const kRejectionToolsBase = R"(recipe: rejection_sampling
output_dir: run
roles:
  student: {model: FOLDER/student}
  generator: {model: FOLDER/student}
  tools: {environment: {command: [python3, tools.py]}}
data: {train: [{path: FOLDER/chat.jsonl}], max_length: 16, chat_template: FOLDER/tools.jinja}
train: {max_steps: 10, per_device_train_batch_size: 2}
generation: {num_generations: 2, max_new_tokens: 4}
environment: {max_tokens: 8}
rewards: [{type: environment}]
rejection_sampling: {rounds: 2, prompts_per_round: 4}
)";

namespace {

void write_model(const fs::path& folder, int hidden_size, const std::string& more = {}) {
  fs::create_directories(folder);
  word_tokenizer(folder);
  std::ofstream(folder / "config.json")
      << R"({"model_type": "llama", "vocab_size": 100, "intermediate_size": 64,
             "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
             "rms_norm_eps": 1e-6, "hidden_act": "silu", "max_position_embeddings": 128,
             "rope_theta": 10000.0, "tie_word_embeddings": false, "hidden_size": )"
      << hidden_size << ", \"head_dim\": " << hidden_size / 4 << more << "}";
}

// Calls of tools as Hermes writes them.
constexpr const char* kToolsTemplate =
    R"({% if tools %}<|system|>{{ tools | tojson }} w1 <tool_call>{"name": w2, "arguments": w3})"
    R"(</tool_call><|end|>{% endif %}{% for m in messages %})"
    R"(<|{{ 'user' if m.role == 'tool' else m.role }}|>{{ m.content or '' }})"
    R"({% for call in m.tool_calls or [] %}<tool_call>{"name": "{{ call.function.name }}", )"
    R"("arguments": {{ call.function.arguments | tojson }}}</tool_call>{% endfor %}<|end|>)"
    R"({% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %})";

// What a recipe gives the template stands before the conversation.
void write_template(const fs::path& folder) {
  std::ofstream(folder / "chat_template.jinja")
      << "{{ mood or '' }}{% if dated %} {{ strftime_now('w%d') }}{% endif %} " << kMarkedTemplate;
  // What a recipe may put in its place: another one, and one that teaches calls of tools.
  std::ofstream(folder.parent_path() / "other.jinja") << "w8 " << kMarkedTemplate;
  std::ofstream(folder.parent_path() / "tools.jinja") << kToolsTemplate;
  std::ofstream(folder.parent_path() / "dated.jinja")
      << "{{ strftime_now('w%d') }} " << kToolsTemplate;
}

// Two words of the prompt, three of the completion: seven tokens.
std::string prompt_row(int i) {
  const auto word = [](int number) { return "w" + std::to_string(number % 90); };
  return "{\"prompt\": \"" + word(i) + " " + word(i + 30) + "\", \"completion\": \"" + word(i + 1) +
         " " + word(i + 2) + " " + word(i + 3) + "\", \"other\": \"" + word(i + 50) + "\"}\n";
}

}  // namespace

void write_key_files(const fs::path& folder) {
  write_model(folder / "student", 48);
  write_model(folder / "teacher", 96);
  write_model(folder / "scorer", 48, ", \"architectures\": [\"LlamaForSequenceClassification\"]");
  write_template(folder / "student");

  std::ofstream train(folder / "train.jsonl");
  std::ofstream more(folder / "more.jsonl");
  for (int i = 0; i < 12; ++i)
    train << prompt_row(i);
  for (int i = 20; i < 28; ++i)
    more << prompt_row(i);

  // Rows of two formats at once, of messages, and one that is bad.
  std::ofstream both(folder / "both.jsonl");
  std::ofstream chat(folder / "chat.jsonl");
  for (const std::string word : {"w1", "w2", "w3", "w4"}) {
    both << R"({"prompt": "w7", "completion": ")" << word << R"(", "text": ")" << word << "\"}\n";
    chat << R"({"messages": [{"role": "user", "content": "w5"},)"
         << R"({"role": "assistant", "content": ")" << word << "\"}]}\n";
  }
  std::ofstream nulls(folder / "nulls.jsonl");  // which a recipe's own mood does not reach
  for (const std::string word : {"w1", "w2", "w3", "w4"})
    nulls << R"({"messages": [{"role": "user", "content": "w5"},)"
          << R"({"role": "assistant", "content": ")" << word
          << R"("}], "chat_template_kwargs": {"mood": null}})"
          << "\n";
  std::ofstream(folder / "bad.jsonl") << prompt_row(1) << "{\"nothing\": 1}\n" << prompt_row(2);
}

}  // namespace retort::test

// The offline commands: each takes its options and returns the process's exit code; errors are
// thrown as Error.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/generation/request.h"

namespace retort::recipes {
struct Recipe;
}

namespace retort::launch {

struct EvalCommand {
  std::string model, data, output;  // output: per-sample JSONL, optional
  std::string format = "auto";
  std::map<std::string, std::string> columns;
  std::string dtype;  // "": as the file
  int64_t max_length = 1024;
  int64_t batch_size = 16;   // samples computed together
  bool exact_match = false;  // generate greedily and compare numeric answers
  int64_t max_new_tokens = 128;
};
int run_eval(const EvalCommand& command);

struct GenerateCommand {
  std::string model, prompts, output;
  std::map<std::string, std::string> columns;
  std::string dtype;
  int64_t max_new_tokens = 256, min_new_tokens = 0, num_generations = 1, batch_size = 32;
  models::SamplingOptions sampling;
  std::vector<std::string> stop;
  std::string max_new_tokens_column;  // an integer of each row instead of max_new_tokens
  bool ignore_eos = false;
};
int run_generate(const GenerateCommand& command);

struct ChatCommand {
  std::string model, dtype;
  std::string system;  // the conversation begins with this message; empty: with the user's first
  int64_t max_new_tokens = 256;
  models::SamplingOptions sampling{.temperature = 0.7};
};
int run_chat(const ChatCommand& command);

struct ModelInitCommand {
  std::string arch = "qwen3", tokenizer, output;
  int64_t hidden_size = 256, intermediate_size = 0, num_hidden_layers = 4, num_attention_heads = 4;
  int64_t num_key_value_heads = 0, head_dim = 0, max_position_embeddings = 2048, vocab_size = 0;
  double initializer_range = 0.02, rope_theta = 10000.0;
  bool tie_word_embeddings = true;
  std::string dtype = "float32";
  uint64_t seed = 0;
};
int run_model_init(const ModelInitCommand& command);

struct ModelExportCommand {
  std::string model, output;  // output: a file
  std::string format = "gguf";
  std::string dtype;           // f32 | f16 | bf16 | q8_0; "": as the checkpoint
  int64_t context_length = 0;  // 0: max_position_embeddings
};
int run_model_export(const ModelExportCommand& command);

struct ModelConvertCommand {
  std::string model, output;
  std::string dtype;                    // bf16 | fp16 | fp32; "": as the checkpoint
  std::string max_shard_size = "5GiB";  // of the data of one file
};
int run_model_convert(const ModelConvertCommand& command);

struct VocabAddCommand {
  std::string model, output;
  std::vector<std::string> tokens;
  bool special = false;
  std::string init = "mean";  // mean | copy | zero | random
  std::string from;           // mean: a description; copy: a token
  uint64_t seed = 0;
};
int run_vocab_add(const VocabAddCommand& command);

struct ModelMergeCommand {
  std::string adapter, output;  // folders
  std::string base;             // "": what the adapter names
  std::string dtype;            // of the file that is written; "": as the base model's
};
int run_model_merge(const ModelMergeCommand& command);

struct TokenizerTrainCommand {
  std::vector<std::string> data;
  std::string output;
  int64_t vocab_size = 4096;
};
int run_tokenizer_train(const TokenizerTrainCommand& command);

struct ArithmeticCommand {
  std::string output;
  int64_t first = 0, count = 1000;
  uint64_t seed = 0;
  bool preferences = false;  // pairs of a right and a wrong solution
  int mistakes_percent = 0;  // of the rows, that have the wrong solution
};
int run_data_arithmetic(const ArithmeticCommand& command);

struct ProbeCommand {
  std::string url;   // or a recipe: what it says goes for all its engines
  std::string role;  // of a recipe; "": all
  std::string engine, tokenizer;
  std::string model;  // folder with the weights that are served; "": none
  std::string served_model, api_key_env, ca_file;
  std::string purpose;  // of engines::Purpose; "": nothing is refused
  models::SamplingOptions sampling;
  int64_t wanted_top_k = 64;  // of purpose top_k
  int64_t timeout_seconds = 300;
  bool json = false;
};
// Asks an inference engine what its answers mean and prints it; with a purpose, throws
// kInvalidArgument or kMismatch after that when it does not serve it (engines/contract.h).
int run_probe(const ProbeCommand& command);

struct StatusCommand {
  std::string run;  // a run's folder
  bool watch = false;
};
// Shows what a run is doing, from its status.json; with `watch` again each second until it has
// ended. The run's exit code once it has one; before that 0, or 1 if its launcher is lost.
// kInvalidArgument if `run` holds no run.
int run_status(const StatusCommand& command);

struct DoctorCommand {
  std::string recipe;  // "": only what holds of any run on this host
  std::vector<std::string> overrides;
  bool json = false;
};
// Looks at this host, and at those of the recipe, and prints what it has found (launch/doctor). 0
// without problems, else 1.
int run_doctor(const DoctorCommand& command);

// Of a link between two hosts, unless the user says another number.
inline constexpr double kUsualLinkGbit = 10;

struct RecipeCommand {
  std::string recipe;
  std::vector<std::string> overrides;
  bool json = false;                  // plan
  double link_gbit = kUsualLinkGbit;  // plan: of a host's link
  int64_t samples = 4;                // audit
  bool links = false;                 // check: those between hosts are measured, too
};
int run_audit(const RecipeCommand& command);
int run_check(const RecipeCommand& command);
int run_plan(const RecipeCommand& command);
// What plan --json prints and a run keeps as plan.json.
std::string plan_json(const recipes::Recipe& recipe, double link_gbit = kUsualLinkGbit);

}  // namespace retort::launch

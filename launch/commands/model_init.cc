// retort model init: a randomly initialised checkpoint.
#include <nlohmann/json.hpp>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "launch/commands/command_line.h"
#include "launch/commands/output_folder.h"
#include "models/checkpoint/checkpoint.h"
#include "models/text/tokenizer.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

struct ModelInitCommand {
  std::string arch = "qwen3", tokenizer, output;
  int64_t hidden_size = 256, intermediate_size = 0, num_hidden_layers = 4, num_attention_heads = 4;
  int64_t num_key_value_heads = 0, head_dim = 0, max_position_embeddings = 2048, vocab_size = 0;
  double initializer_range = 0.02, rope_theta = 10000.0;
  bool tie_word_embeddings = true;
  std::string dtype = "float32";
  uint64_t seed = 0;
};

const std::map<std::string, std::string> kArchitectures{{"llama", "LlamaForCausalLM"},
                                                        {"mistral", "MistralForCausalLM"},
                                                        {"qwen2", "Qwen2ForCausalLM"},
                                                        {"qwen3", "Qwen3ForCausalLM"}};

std::string config_json(const ModelInitCommand& c, const models::Tokenizer& tokenizer) {
  const auto architecture = kArchitectures.find(c.arch);
  if (architecture == kArchitectures.end())
    throw Error(ErrorCode::kInvalidArgument,
                "--arch '" + c.arch + "' is not one of llama | mistral | qwen2 | qwen3");

  // Sizes that follow from others where they are not said.
  const int64_t heads = c.num_attention_heads;
  const int64_t head_dim = c.head_dim > 0 ? c.head_dim : c.hidden_size / heads;
  if (c.head_dim <= 0 && c.hidden_size % heads != 0)
    throw Error(ErrorCode::kInvalidArgument,
                "--hidden-size must be a multiple of --num-attention-heads, or give --head-dim");

  const int64_t vocab = c.vocab_size > 0 ? c.vocab_size : tokenizer.vocab_size();
  if (vocab < tokenizer.vocab_size())
    throw Error(ErrorCode::kInvalidArgument, "--vocab-size " + std::to_string(vocab) +
                                                 " is smaller than the tokenizer's " +
                                                 std::to_string(tokenizer.vocab_size()));

  // The keys are those of transformers.
  nlohmann::ordered_json json = {
      {"architectures", {architecture->second}},
      {"model_type", c.arch},
      {"vocab_size", vocab},
      {"hidden_size", c.hidden_size},
      {"intermediate_size",
       c.intermediate_size > 0 ? c.intermediate_size : (c.hidden_size * 8 / 3 + 63) / 64 * 64},
      {"num_hidden_layers", c.num_hidden_layers},
      {"num_attention_heads", heads},
      {"num_key_value_heads", c.num_key_value_heads > 0 ? c.num_key_value_heads : heads},
      {"head_dim", head_dim},
      {"hidden_act", "silu"},
      {"max_position_embeddings", c.max_position_embeddings},
      {"initializer_range", c.initializer_range},
      {"rms_norm_eps", 1e-6},
      {"rope_theta", c.rope_theta},
      {"tie_word_embeddings", c.tie_word_embeddings},
      {"torch_dtype", c.dtype},
      {"eos_token_id", tokenizer.eos_id()},
  };

  // Not every tokenizer or architecture has these keys.
  if (tokenizer.bos_id() >= 0) json["bos_token_id"] = tokenizer.bos_id();
  if (tokenizer.pad_id() >= 0) json["pad_token_id"] = tokenizer.pad_id();
  if (c.arch == "mistral") json["sliding_window"] = nullptr;
  return json.dump(2);
}

int run_model_init(const ModelInitCommand& command) {
  const models::Tokenizer tokenizer = models::Tokenizer::load(command.tokenizer);
  const models::ModelConfig config =
      models::parse_model_config(config_json(command, tokenizer), "the options of model init");
  const models::Decoder decoder =
      models::Decoder::random(config, command.seed, models::parse_dtype(command.dtype));
  prepare_output_folder(command.output);
  write_folder_atomically(command.output, [&](const fs::path& folder) {
    models::save_decoder(decoder, models::parse_dtype(command.dtype), command.tokenizer, folder);
  });
  std::printf("wrote %s: %s, %lld parameters\n", command.output.c_str(), command.arch.c_str(),
              static_cast<long long>(config.num_parameters()));
  return 0;
}

}  // namespace

void add_model_init(Command model) {
  Command c = model.command("init", "a randomly initialised checkpoint");
  ModelInitCommand& o = c.runs(run_model_init);
  c.option("--arch", o.arch, "llama | mistral | qwen2 | qwen3").shows_default();
  c.option("--tokenizer", o.tokenizer, "folder with a tokenizer").required();
  c.option("--output", o.output, "folder to write").required();
  c.option("--hidden-size", o.hidden_size).shows_default();
  c.option("--intermediate-size", o.intermediate_size, "0: about 8/3 of the hidden size");
  c.option("--num-hidden-layers", o.num_hidden_layers).shows_default();
  c.option("--num-attention-heads", o.num_attention_heads).shows_default();
  c.option("--num-key-value-heads", o.num_key_value_heads, "0: as many as attention heads");
  c.option("--head-dim", o.head_dim, "0: hidden size / heads");
  c.option("--max-position-embeddings", o.max_position_embeddings).shows_default();
  c.option("--vocab-size", o.vocab_size, "rows of the embedding; 0: as the tokenizer");
  c.option("--initializer-range", o.initializer_range).shows_default();
  c.option("--rope-theta", o.rope_theta).shows_default();
  c.option("--tie-word-embeddings", o.tie_word_embeddings, "true | false").shows_default();
  c.option("--dtype", o.dtype).shows_default();
  c.option("--seed", o.seed).shows_default();
}

}  // namespace retort::launch

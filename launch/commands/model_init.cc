// retort model init / retort tokenizer train: new checkpoints and tokenizers from nothing.
#include <nlohmann/json.hpp>

#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/options.h"
#include "launch/commands/commands.h"
#include "launch/commands/output_folder.h"
#include "models/checkpoint.h"
#include "models/text/tokenizer.h"
#include "recipes/data/jsonl.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

const std::map<std::string, std::string> kArchitectures{{"llama", "LlamaForCausalLM"},
                                                        {"mistral", "MistralForCausalLM"},
                                                        {"qwen2", "Qwen2ForCausalLM"},
                                                        {"qwen3", "Qwen3ForCausalLM"}};

std::string config_json(const ModelInitCommand& c, const models::Tokenizer& tokenizer) {
  const auto architecture = kArchitectures.find(c.arch);
  if (architecture == kArchitectures.end())
    throw Error(ErrorCode::kInvalidArgument,
                "--arch '" + c.arch + "' is not one of llama | mistral | qwen2 | qwen3");

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

  if (tokenizer.bos_id() >= 0) json["bos_token_id"] = tokenizer.bos_id();
  if (tokenizer.pad_id() >= 0) json["pad_token_id"] = tokenizer.pad_id();
  if (c.arch == "mistral") json["sliding_window"] = nullptr;
  return json.dump(2);
}

}  // namespace

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

int run_tokenizer_train(const TokenizerTrainCommand& command) {
  // Every string in a row counts, however deep it stands.
  std::vector<std::string> texts;
  for (const std::string& path : command.data) {
    const data::JsonlFile file(path);
    for (int64_t i = 0; i < file.size(); ++i) {
      const auto row = nlohmann::json::parse(file.line(i), nullptr, /*allow_exceptions=*/false);
      if (row.is_discarded() || !row.is_object())
        throw Error(ErrorCode::kInvalidArgument,
                    path + ":" + std::to_string(file.line_number(i)) +
                        ": not a JSON object; every line must be one row");
      const std::function<void(const nlohmann::json&)> collect = [&](const nlohmann::json& value) {
        if (value.is_string()) texts.push_back(value.get<std::string>());
        if (value.is_structured())
          for (const auto& item : value)
            collect(item);
      };
      collect(row);
    }
  }

  fs::create_directories(command.output);
  models::train_tokenizer(texts, {.vocab_size = command.vocab_size}, command.output);
  const models::Tokenizer tokenizer = models::Tokenizer::load(command.output);
  std::printf("wrote %s: %lld tokens from %zu texts\n", command.output.c_str(),
              static_cast<long long>(tokenizer.vocab_size()), texts.size());
  return 0;
}

}  // namespace retort::launch

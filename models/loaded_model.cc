#include "models/loaded_model.h"

#include <filesystem>

#include "base/error.h"
#include "models/end_tokens.h"

namespace retort::models {

LoadedModel load_model(const std::string& folder, const std::string& dtype) {
  if (!std::filesystem::exists(std::filesystem::path(folder) / "config.json"))
    throw Error(ErrorCode::kInvalidArgument,
                "'" + folder +
                    "' holds no config.json; --model wants a Hugging Face folder (config.json, "
                    "*.safetensors, tokenizer.json)");
  const ModelConfig config = read_model_config(folder);
  LoadedModel model{
      .decoder = load_decoder(folder, parse_dtype(dtype.empty() ? config.torch_dtype : dtype)),
      .tokenizer = Tokenizer::load(folder),
      .chat = ChatTemplate::load(folder),
      .eos_token_ids = {}};
  model.decoder.set_requires_grad(false);
  model.eos_token_ids = end_token_ids(config, model.tokenizer);
  return model;
}

}  // namespace retort::models

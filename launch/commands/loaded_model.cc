#include "launch/commands/loaded_model.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"

namespace retort::launch {

LoadedModel load_model(const std::string& folder, const std::string& dtype) {
  if (!std::filesystem::exists(std::filesystem::path(folder) / "config.json"))
    throw Error(ErrorCode::kInvalidArgument,
                "'" + folder +
                    "' holds no config.json; --model wants a Hugging Face folder (config.json, "
                    "*.safetensors, tokenizer.json)");
  const models::ModelConfig config = models::read_model_config(folder);
  LoadedModel model{.decoder = models::load_decoder(
                        folder, models::parse_dtype(dtype.empty() ? config.torch_dtype : dtype)),
                    .tokenizer = models::Tokenizer::load(folder),
                    .chat = models::ChatTemplate::load(folder),
                    .eos_token_ids = config.eos_token_ids};
  model.decoder.set_requires_grad(false);
  const int64_t own = model.tokenizer.eos_id();
  if (own >= 0 && std::find(model.eos_token_ids.begin(), model.eos_token_ids.end(), own) ==
                      model.eos_token_ids.end())
    model.eos_token_ids.push_back(own);
  return model;
}

}  // namespace retort::launch

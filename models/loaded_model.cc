#include "models/loaded_model.h"

#include <filesystem>

#include "base/error.h"
#include "models/end_tokens.h"
#include "models/lora/adapter.h"
#include "models/model_folder.h"

namespace retort::models {
namespace fs = std::filesystem;

LoadedModel load_model(const std::string& folder, const std::string& dtype) {
  const bool adapted = is_adapter_folder(folder);
  if (!fs::exists(fs::path(folder) / "config.json") && !adapted)
    throw Error(ErrorCode::kInvalidArgument,
                "'" + folder +
                    "' holds no config.json; --model wants a Hugging Face folder (config.json, "
                    "*.safetensors, tokenizer.json)" +
                    model_folder_hint(folder));
  const fs::path weights = adapted ? adapter_base_folder(folder) : fs::path(folder);
  const ModelConfig config = read_model_config(weights);
  if (adapted && adapter_labels(folder) > 0)
    throw Error(ErrorCode::kInvalidArgument,
                "'" + folder +
                    "' is the adapter of a sequence classifier, such as a reward model; expected "
                    "one of a language model (merge it with `retort model merge`)");
  // An adapter's folder may have no tokenizer of its own.
  const bool has_tokenizer = fs::exists(fs::path(folder) / "tokenizer.json");
  const std::string texts = has_tokenizer ? folder : weights.string();
  LoadedModel model{
      .decoder = load_decoder(weights, parse_dtype(dtype.empty() ? config.torch_dtype : dtype)),
      .tokenizer = Tokenizer::load(texts),
      .chat = ChatTemplate::load(texts),
      .eos_token_ids = {}};
  if (adapted) {
    attach_adapter(model.decoder, folder);
    merge_adapter(model.decoder);
  }
  model.decoder.set_requires_grad(false);
  model.eos_token_ids = end_token_ids(config, model.tokenizer);
  return model;
}

}  // namespace retort::models

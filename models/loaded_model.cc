#include "models/loaded_model.h"

#include <filesystem>

#include "base/error.h"
#include "models/checkpoint/adapter.h"
#include "models/decoder/merged_weights.h"
#include "models/safetensors/model_folder.h"
#include "models/text/end_tokens.h"

namespace retort::models {
namespace fs = std::filesystem;

namespace {

// The folder of an adapter may have no tokenizer of its own; then that of its model is used.
fs::path text_folder(const std::string& folder) {
  if (!is_adapter_folder(folder) || fs::exists(fs::path(folder) / "tokenizer.json")) return folder;
  return adapter_base_folder(folder);
}

}  // namespace

LoadedModel load_model(const std::string& folder, const std::string& dtype) {
  LoadedModel model = load_model_without_chat(folder, dtype);
  model.chat = ChatTemplate::load(text_folder(folder));
  return model;
}

LoadedModel load_model_without_chat(const std::string& folder, const std::string& dtype) {
  const bool adapted = is_adapter_folder(folder);
  if (!fs::exists(fs::path(folder) / "config.json") && !adapted)
    throw Error(ErrorCode::kInvalidArgument,
                "'" + folder +
                    "' holds no config.json; --model wants a Hugging Face folder (config.json, "
                    "*.safetensors, tokenizer.json)" +
                    model_folder_hint(folder));

  // An adapter is loaded with the model that its adapter_config.json names.
  const fs::path weights = adapted ? adapter_base_folder(folder) : fs::path(folder);
  const ModelConfig config = read_model_config(weights);
  if (adapted && adapter_labels(folder) > 0)
    throw Error(ErrorCode::kInvalidArgument,
                "'" + folder +
                    "' is the adapter of a sequence classifier, such as a reward model; expected "
                    "one of a language model (merge it with `retort model merge`)");

  LoadedModel model{
      .decoder = load_decoder(weights, parse_dtype(dtype.empty() ? config.torch_dtype : dtype)),
      .tokenizer = Tokenizer::load(text_folder(folder)),
      .chat = {},
      .eos_token_ids = {}};

  // What an adapter adds goes into the weights, which nobody changes from here on.
  if (adapted) {
    attach_adapter(model.decoder, folder);
    merge_adapter(model.decoder);
  }
  model.decoder.set_requires_grad(false);
  model.eos_token_ids = end_token_ids(config, model.tokenizer);
  return model;
}

}  // namespace retort::models

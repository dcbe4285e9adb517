// A checkpoint opened whole, to be used in one process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/checkpoint/checkpoint.h"
#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"

namespace retort::models {

struct LoadedModel {
  Decoder decoder;
  Tokenizer tokenizer;
  ChatTemplate chat;
  // of config, generation config and tokenizer, without repetition
  std::vector<int64_t> eos_token_ids;
};

// dtype "": as the file. The folder of an adapter is opened with the model that it names, into
// whose weights it is merged. kInvalidArgument when `folder` holds neither.
LoadedModel load_model(const std::string& folder, const std::string& dtype);
// The same without reading its chat template, whose mistakes are nobody's: of a model that renders
// no conversation, or has another template put in place of its own.
LoadedModel load_model_without_chat(const std::string& folder, const std::string& dtype);

}  // namespace retort::models

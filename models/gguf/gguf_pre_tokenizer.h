// Which of llama.cpp's pre-tokenizers cuts a text as a tokenizer.json says. Private to models/.
#pragma once

#include <string>

#include "models/config/config_fields.h"

namespace retort::models {

// The value of tokenizer.ggml.pre. `tokenizer`: the whole of a tokenizer.json, a byte-level BPE.
// Reads pre_tokenizer and model.ignore_merges: llama.cpp ties both to one name.
// kInvalidArgument naming `origin` and quoting the pre-tokenizer where there is none.
std::string gguf_pre_tokenizer(const ConfigJson& tokenizer, const std::string& origin);

}  // namespace retort::models

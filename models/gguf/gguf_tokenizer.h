// A tokenizer as llama.cpp reads it from a GGUF file. Private to models/.
#pragma once

#include <cstdint>
#include <filesystem>

#include "models/config/config.h"
#include "models/gguf/gguf_writer.h"

namespace retort::models {

// Adds the keys tokenizer.*: tokens and their types, merges, the name of the pre-tokenizer, special
// ids, what stands before and after a text, and the chat template as it is. Rows of the embedding
// without a token become "[PAD<id>]", unused.
// Memory: tokenizer.json parsed, about ten times its size on disk, until this returns.
// Errors: kInvalidArgument naming the part that llama.cpp has no equal of: a tokenizer that is not
// a byte-level BPE, an unknown pre-tokenizer, normalizer or added token, a model without an end
// token. kMismatch where tokens and embedding disagree.
void add_gguf_tokenizer(const std::filesystem::path& folder, const ModelConfig& config,
                        GgufMetadata& metadata);

}  // namespace retort::models

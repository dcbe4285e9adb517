// A Hugging Face model folder: config.json, safetensors, tokenizer files.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "models/decoder.h"

namespace retort::models {

// Loads config and weights; each tensor is read by mmap and converted to `dtype` one by one (peak: the model plus one
// tensor). Unknown config keys are logged once. kInvalidArgument / kCorrupt / kMismatch naming file and tensor.
Decoder load_decoder(const std::filesystem::path& folder, at::ScalarType dtype);

// Writes config.json, weights (in the dtype `file_dtype`; shards over 5 GiB) and copies the tokenizer and generation files
// (tokenizer.json, tokenizer_config.json, special_tokens_map.json, chat_template.jinja, generation_config.json, vocab.json,
// merges.txt, added_tokens.json) of `tokenizer_source`, so that transformers loads the folder as is. Writes into `folder`, which
// must exist (callers wrap it in write_folder_atomically). A checkpoint that was sharded or single stays so.
void save_decoder(const Decoder& decoder, at::ScalarType file_dtype, const std::filesystem::path& tokenizer_source,
                  const std::filesystem::path& folder);

at::ScalarType parse_dtype(const std::string& name);  // float32 | bfloat16 | float16
std::string dtype_name(at::ScalarType dtype);

// SHA-256 over describe_function(config) and the names, shapes, dtypes and bytes of the weights: "which model is this".
std::string weights_fingerprint(const Decoder& decoder);

}  // namespace retort::models

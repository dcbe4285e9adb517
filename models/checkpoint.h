// A Hugging Face model folder: config.json, safetensors, tokenizer files.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "models/decoder.h"
#include "models/safetensors_layout.h"
#include "parallel/parameter.h"

namespace retort::models {

// Loads config and weights; each slice that the placement holds is read by mmap and converted to
// `dtype` one by one (peak: this rank's part plus one slice), into the memory of `device`. Unknown
// config keys are logged once. kInvalidArgument / kCorrupt / kMismatch naming file and tensor.
Decoder load_decoder(const std::filesystem::path& folder, at::ScalarType dtype,
                     const Placement& placement = {}, at::Device device = at::kCPU);

// What one process writes of a checkpoint that several write together: some of the elements of some
// files.
struct CheckpointPart {
  std::filesystem::path folder;  // relative to the checkpoint
  SafetensorsFiles files;        // the same in every process
  std::vector<parallel::TensorPiece> pieces;
};

// Writes config.json, weights (in the dtype `file_dtype`; shards over 5 GiB) and copies the
// tokenizer and generation files (tokenizer.json, tokenizer_config.json, special_tokens_map.json,
// chat_template.jinja, generation_config.json, vocab.json, merges.txt, added_tokens.json) of
// `tokenizer_source`, so that transformers loads the folder as is. Writes into `folder`, which must
// exist (callers wrap it in write_folder_atomically). A checkpoint that was sharded or single stays
// so. For a whole model in one process; else the three steps are taken apart: one process calls
// create_safetensors, every process writes its decoder_part, one process calls
// write_decoder_description.
void save_decoder(const Decoder& decoder, at::ScalarType file_dtype,
                  const std::filesystem::path& tokenizer_source,
                  const std::filesystem::path& folder);
// The weights: the files of the whole model, and the slices that this rank counts
// (ParameterShard::counted; they alias the parameters). One dp rank writes them. Folder: "".
CheckpointPart decoder_part(const Decoder& decoder, at::ScalarType file_dtype);
void write_decoder_description(const Decoder& decoder, at::ScalarType file_dtype,
                               const std::filesystem::path& tokenizer_source,
                               const std::filesystem::path& folder);
// Names and whole shapes of the parameters of the model, in the order of Decoder::parameters().
std::vector<TensorInfo> parameter_infos(const ModelConfig& config, at::ScalarType dtype);

at::ScalarType parse_dtype(const std::string& name);  // float32 | bfloat16 | float16
std::string dtype_name(at::ScalarType dtype);

// SHA-256 over describe_function(config) and the names, shapes, dtypes and bytes of the weights:
// "which model is this".
std::string weights_fingerprint(const Decoder& decoder);
// The same of the model that load_decoder(folder, dtype) gives, in whatever placement: read tensor
// by tensor, `between` called after each.
std::string weights_fingerprint(const std::filesystem::path& folder, at::ScalarType dtype,
                                const std::function<void()>& between = {});

}  // namespace retort::models

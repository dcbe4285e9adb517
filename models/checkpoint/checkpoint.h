// A Hugging Face model folder: config.json, safetensors, tokenizer files.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "models/decoder/decoder.h"
#include "models/safetensors/layout.h"
#include "parallel/parameter.h"

namespace retort::models {

// Loads config and weights into the memory of `device`. Unknown config keys are logged once.
// Memory: each slice of the placement is read by mmap and converted to `dtype` one by one; at most
// this rank's part plus one slice.
// Errors: kInvalidArgument naming file and tensor, or for a folder that holds a sequence
// classifier.
Decoder load_decoder(const std::filesystem::path& folder, at::ScalarType dtype,
                     const Placement& placement = {}, at::Device device = at::kCPU);

// How a sequence classifier is opened.
struct ClassifierOptions {
  // Of a language model, whose head becomes a new one: labels, seed of the head (random as
  // Decoder::random), SequenceClassifier::pad_token_id. 0 labels: the folder must hold a
  // classifier.
  int64_t num_labels = 0;
  uint64_t seed = 0;
  int64_t pad_token_id = -1;
  // The id whose row of the embedding gets no gradient, whatever the folder's config.json names;
  // -1: every row gets its own.
  int64_t padding_row = -1;
};
// Loads a sequence classifier, which load_decoder refuses, in the way of load_decoder. kMismatch
// for a classifier that has another number of labels, where one is asked for.
Decoder load_classifier(const std::filesystem::path& folder, at::ScalarType dtype,
                        const ClassifierOptions& options, const Placement& placement = {},
                        at::Device device = at::kCPU);

// What one process writes of a checkpoint that several write together: some of the elements of some
// files.
struct CheckpointPart {
  std::filesystem::path folder;  // relative to the checkpoint
  SafetensorsFiles files;        // the same in every process
  std::vector<parallel::TensorPiece> pieces;
};

// Writes config.json, the weights (in the dtype `file_dtype`, in shards when they exceed 5 GiB) and
// copies the tokenizer and generation files (tokenizer.json, tokenizer_config.json,
// special_tokens_map.json, chat_template.jinja, additional_chat_templates/, generation_config.json,
// vocab.json, merges.txt, added_tokens.json, tokenizer.model) of `tokenizer_source`, so that
// transformers loads the folder as is. A checkpoint that was sharded or single stays so. `folder`
// must exist (callers wrap this in write_folder_atomically).
// Use: for a whole model in one process. Else in three steps: one process calls create_safetensors,
// every process writes the pieces of its decoder_part with a SafetensorsSliceWriter, one process
// calls write_decoder_description.
void save_decoder(const Decoder& decoder, at::ScalarType file_dtype,
                  const std::filesystem::path& tokenizer_source,
                  const std::filesystem::path& folder);
// The weights: the files of the whole model, and the slices that this rank writes
// (ParameterShard::counted; they alias the parameters). Only one dp rank writes its part. Its
// folder is "".
CheckpointPart decoder_part(const Decoder& decoder, at::ScalarType file_dtype);
void write_decoder_description(const Decoder& decoder, at::ScalarType file_dtype,
                               const std::filesystem::path& tokenizer_source,
                               const std::filesystem::path& folder);
// The tokenizer and generation files of a folder, those of them that are there.
void copy_tokenizer_files(const std::filesystem::path& from, const std::filesystem::path& to);
// The whole model's weights by the names of its files. They share memory with the parameters but
// where the files keep several fused.
std::vector<std::pair<std::string, at::Tensor>> checkpoint_tensors(const Decoder& decoder);
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

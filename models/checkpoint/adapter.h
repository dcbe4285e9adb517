// The tensors of an adapter: random, from PEFT's files and into them.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "models/checkpoint/checkpoint.h"
#include "models/decoder/decoder.h"
#include "models/lora/lora_config.h"
#include "models/parameters/placement.h"

namespace retort::models {

// Gives the decoder a new adapter, as PEFT begins: A uniform in (-1, 1) / sqrt(in), B zero, so that
// the decoder's function stays as it is; modules_to_save begin as the decoder's own. A pure
// function of (config, seed), the same in every process and for every placement.
void attach_new_adapter(Decoder& decoder, const LoraConfig& lora, uint64_t seed);

// Gives the decoder the adapter of a folder: adapter_config.json and adapter_model.safetensors, of
// which this placement's slices are read. Errors: as read_adapter_config; kInvalidArgument naming
// the file and the tensor that is missing, misshaped or of no adapted layer, or what is wrong with
// the file.
void attach_adapter(Decoder& decoder, const std::filesystem::path& folder);
// Keeps the adapter of a folder beside the one that the decoder has, whose settings it must have:
// Decoder::attach_first_adapter. Memory: r * (in + out) numbers of the decoder's dtype for each
// adapted matrix, of this placement's slices. Errors: as attach_adapter, and kMismatch for other
// settings.
void attach_first_adapter(Decoder& decoder, const std::filesystem::path& folder);
// SHA-256 of the adapter's weights file: which state of an adapter it is.
std::string adapter_fingerprint(const std::filesystem::path& folder);
// The scores of the sequence classifier that a folder's adapter is of; 0: of a language model.
int64_t adapter_labels(const std::filesystem::path& folder);
// The same checks without a model in memory: of names, shapes and the file's size.
void check_adapter(const ModelConfig& config, const std::filesystem::path& folder);

// Names as in an adapter's files, without PEFT's prefix, and whole shapes of the adapter of a whole
// model.
std::vector<TensorInfo> adapter_infos(const ModelConfig& config, const LoraConfig& lora,
                                      at::ScalarType dtype);

// What it computes in a model, as text: r, the scaling, and the names of what is adapted and saved.
// The same for settings that say so in other words.
std::string describe_adapter(const ModelConfig& config, const LoraConfig& lora);

// Names as in the decoder and whole shapes of its trained_parameters() in the whole model: of the
// adapter, or of the model.
std::vector<TensorInfo> trained_infos(const Decoder& decoder, at::ScalarType dtype);

// What a checkpoint holds of a decoder: its weights (decoder_part), or its adapter as PEFT names it
// ("base_model.model." before the decoder's names).
CheckpointPart trained_part(const Decoder& decoder, at::ScalarType file_dtype);
// What stands beside them: write_decoder_description, or adapter_config.json and the tokenizer's
// files. `base`: the folder of the model, whose tokenizer is copied.
void write_trained_description(const Decoder& decoder, at::ScalarType file_dtype,
                               const std::filesystem::path& base,
                               const std::filesystem::path& folder);

}  // namespace retort::models

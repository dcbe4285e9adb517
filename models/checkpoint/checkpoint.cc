#include "models/checkpoint/checkpoint.h"

#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/sizes.h"
#include "models/checkpoint/checkpoint_check.h"
#include "models/checkpoint/stored_parameters.h"
#include "models/decoder/decoder_parameters.h"
#include "models/parameters/checkpoint_tensor.h"
#include "models/parameters/parameter_specs.h"
#include "models/safetensors/safetensors.h"
#include "models/safetensors/writer.h"

namespace retort::models {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTokenizerFiles[] = {
    "tokenizer.json",      "tokenizer_config.json",  "special_tokens_map.json",
    "chat_template.jinja", "generation_config.json", "vocab.json",
    "merges.txt",          "added_tokens.json",      "tokenizer.model"};

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words)
    text += (text.empty() ? "" : ", ") + word;
  return text;
}

void expect_floating(const SafetensorsReader& reader, const ModelConfig& config,
                     const ParameterSpec& spec, const fs::path& folder) {
  const std::string file_name = checkpoint_tensor(config, spec.name, spec.shard.shape).name;
  const at::ScalarType dtype = reader.dtype(file_name);
  if (at::isFloatingType(dtype)) return;
  throw Error(ErrorCode::kInvalidArgument, folder.string() + ": tensor '" + spec.name + "' holds " +
                                               c10::toString(dtype) +
                                               ", expected floating-point numbers")
      .with("tensor", spec.name);
}

// Copies columns of the file's tensor, on the CPU some rows at a time, so that what was compared
// with its checksum is copied while it is in the cache.
void copy_columns(const SafetensorsReader& reader, const ModelConfig& config,
                  const ParameterSpec& spec, at::Tensor& to) {
  constexpr int64_t kBytesOfAThread = 1 << 20;
  const parallel::ParameterShard& shard = spec.shard;
  const int64_t length = spec.shape.at(to_size(shard.dim));
  const int64_t rows = spec.shape.at(0);
  int64_t some = rows;
  if (to.is_cpu() && to.numel() > 0) {
    const int64_t row_bytes = to_int64(to.nbytes()) / rows;
    some = std::max<int64_t>(1, at::get_num_threads() * kBytesOfAThread / row_bytes);
  }
  for (int64_t first = 0; first < rows; first += some) {
    const int64_t count = std::min(some, rows - first);
    const at::Tensor mapped =
        read_parameter_rows(reader, config, spec.name, shard.shape, first, count);
    to.narrow(0, first, count).copy_(mapped.narrow(shard.dim, shard.begin, length));
  }
}

// Copies this rank's slice of a parameter.
void copy_slice(const SafetensorsReader& reader, const ModelConfig& config,
                const ParameterSpec& spec, at::Tensor& to) {
  const parallel::ParameterShard& shard = spec.shard;
  if (shard.dim != 0) return copy_columns(reader, config, spec, to);
  const CheckpointTensor tensor = checkpoint_tensor(config, spec.name, shard.shape);
  const int64_t first = tensor.first_row + shard.begin;
  if (to.is_cpu())
    reader.copy_rows(tensor.name, first, to);
  else
    to.copy_(reader.rows(tensor.name, first, to.size(0)));
}

ModelConfig read_config_to_load(const fs::path& folder) {
  ModelConfig config = read_model_config(folder);
  if (!config.unknown_keys.empty()) {
    RETORT_LOG(kWarning) << (folder / "config.json").string()
                         << ": keys without a meaning here, kept as they are: "
                         << join(config.unknown_keys);
  }
  return config;
}

// Reads this rank's slices, one parameter after the other.
std::vector<std::pair<std::string, at::Tensor>> read_parameters(
    const SafetensorsReader& reader, const ModelConfig& config,
    const std::vector<ParameterSpec>& specs, at::ScalarType dtype, at::Device device,
    const fs::path& folder) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const ParameterSpec& spec : specs) {
    at::Tensor copy = at::empty(spec.shape, at::TensorOptions().dtype(dtype).device(device));
    expect_floating(reader, config, spec, folder);
    copy_slice(reader, config, spec, copy);
    tensors.emplace_back(spec.name, std::move(copy));
  }
  return tensors;
}

}  // namespace

void copy_tokenizer_files(const fs::path& from, const fs::path& to) {
  // A chat template for rows with tools may have a file of its own.
  constexpr const char* kTemplates = "additional_chat_templates";
  if (fs::is_directory(from / kTemplates) && from != to)
    fs::copy(from / kTemplates, to / kTemplates,
             fs::copy_options::overwrite_existing | fs::copy_options::recursive);
  for (const char* name : kTokenizerFiles) {
    if (fs::exists(from / name))
      fs::copy_file(from / name, to / name, fs::copy_options::overwrite_existing);
  }
}

Decoder load_decoder(const fs::path& folder, at::ScalarType dtype, const Placement& placement,
                     at::Device device) {
  ModelConfig config = read_config_to_load(folder);
  if (config.classifies())
    throw Error(ErrorCode::kInvalidArgument,
                folder.string() +
                    " holds a sequence classifier, such as a reward model, which has no head over "
                    "the vocabulary; expected a language model");

  // Every process checks the whole model, so that all of them refuse a bad folder alike.
  const SafetensorsReader reader = open_checkpoint(config, folder);
  std::vector<std::pair<std::string, at::Tensor>> tensors =
      read_parameters(reader, config, parameter_specs(config, placement), dtype, device, folder);
  Decoder decoder(std::move(config), std::move(tensors), placement);
  decoder.set_shard_bytes(reader.sharded() ? reader.largest_shard_bytes() : 0);
  return decoder;
}

Decoder load_classifier(const fs::path& folder, at::ScalarType dtype,
                        const ClassifierOptions& options, const Placement& placement,
                        at::Device device) {
  const ModelConfig stored = read_config_to_load(folder);
  if (!stored.classifies() && options.num_labels == 0)
    throw Error(ErrorCode::kInvalidArgument,
                folder.string() +
                    " holds no sequence classifier (architectures: [...ForSequenceClassification] "
                    "in its config.json); expected one, as recipe: reward_model saves");
  const int64_t labels = stored.classifier.num_labels;
  if (stored.classifies() && options.num_labels != 0 && labels != options.num_labels)
    throw Error(ErrorCode::kMismatch, folder.string() + " holds a classifier of " +
                                          std::to_string(labels) + " labels, asked for are " +
                                          std::to_string(options.num_labels));

  const SafetensorsReader reader = open_checkpoint(stored, folder);
  ModelConfig config = stored.classifies()
                           ? stored
                           : as_classifier(stored, options.num_labels, options.pad_token_id);
  config.pad_token_id = options.padding_row;

  // A language model has no such head, so the head is drawn. It is the last tensor where the
  // pipeline ends.
  std::vector<ParameterSpec> specs = parameter_specs(config, placement);
  const bool draws = !stored.classifies() && !specs.empty() && specs.back().name == kScoreHead;
  if (draws) specs.pop_back();
  std::vector<std::pair<std::string, at::Tensor>> tensors =
      read_parameters(reader, config, specs, dtype, device, folder);
  if (draws) tensors.emplace_back(kScoreHead, random_head(config, options.seed, dtype, device));

  Decoder decoder(std::move(config), std::move(tensors), placement);
  decoder.set_shard_bytes(reader.sharded() ? reader.largest_shard_bytes() : 0);
  return decoder;
}

std::vector<TensorInfo> parameter_infos(const ModelConfig& config, at::ScalarType dtype) {
  std::vector<TensorInfo> infos;
  for (ParameterSpec& spec : parameter_specs(config))
    infos.push_back({std::move(spec.name), dtype, std::move(spec.shape)});
  return infos;
}

std::vector<std::pair<std::string, at::Tensor>> checkpoint_tensors(const Decoder& decoder) {
  RETORT_CHECK(decoder.placement().whole()) << "the tensors of a part of a model";
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const parallel::NamedParameter& parameter : decoder.parameters()) {
    const at::Tensor value = parameter.value.detach();
    const CheckpointTensor tensor =
        checkpoint_tensor(decoder.config(), parameter.name, value.sizes().vec());
    if (tensor.first_row > 0) {  // a later part of a fused tensor
      at::Tensor& fused = tensors.back().second;
      fused = at::cat({fused, value});
    } else {
      tensors.emplace_back(tensor.name, value);
    }
  }
  return tensors;
}

CheckpointPart decoder_part(const Decoder& decoder, at::ScalarType file_dtype) {
  // A checkpoint that was read in shards is written in shards, which are no larger than those were.
  SafetensorsWriteOptions options;
  if (decoder.shard_bytes() > 0) {
    options.always_index = true;
    options.max_shard_bytes = std::min(options.max_shard_bytes, decoder.shard_bytes());
  }
  CheckpointPart part{
      "", SafetensorsFiles::model(checkpoint_infos(decoder.config(), file_dtype), options), {}};
  for (const parallel::NamedParameter& parameter : decoder.parameters())
    // Where several ranks have the same slice, one of them writes it.
    if (parameter.shard.counted)
      part.pieces.push_back(checkpoint_piece(decoder.config(), parameter));
  return part;
}

void write_decoder_description(const Decoder& decoder, at::ScalarType file_dtype,
                               const fs::path& tokenizer_source, const fs::path& folder) {
  ModelConfig config = decoder.config();
  config.torch_dtype = dtype_name(file_dtype);
  copy_tokenizer_files(tokenizer_source, folder);
  write_file_atomically(folder / "config.json", write_model_config(config));
}

void save_decoder(const Decoder& decoder, at::ScalarType file_dtype,
                  const fs::path& tokenizer_source, const fs::path& folder) {
  const CheckpointPart part = decoder_part(decoder, file_dtype);
  create_safetensors(folder, part.files);
  SafetensorsSliceWriter writer(folder, part.files);
  for (const parallel::TensorPiece& piece : part.pieces)
    writer.write(piece);
  writer.finish();
  // A rank that has a part of the model would leave holes in the file without a word.
  RETORT_CHECK(writer.num_elements() == part.files.num_elements())
      << "a part of a model is saved as if it were the whole";
  write_decoder_description(decoder, file_dtype, tokenizer_source, folder);
}

at::ScalarType parse_dtype(const std::string& name) {
  if (name == "float32") return at::kFloat;
  if (name == "bfloat16") return at::kBFloat16;
  if (name == "float16") return at::kHalf;
  throw Error(ErrorCode::kInvalidArgument,
              "unknown dtype '" + name + "'; use float32, bfloat16 or float16")
      .with("dtype", name);
}

std::string dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat: return "float32";
    case at::kBFloat16: return "bfloat16";
    case at::kHalf: return "float16";
    default:
      throw Error(ErrorCode::kInvalidArgument, "weights are kept in float32, bfloat16 or float16")
          .with("dtype", c10::toString(dtype));
  }
}

namespace {

void hash_parameter(Sha256& hash, const std::string& name, const at::Tensor& parameter) {
  const at::Tensor value = parameter.detach().to(at::kCPU).contiguous();
  std::ostringstream header;
  header << name << ' ' << dtype_name(value.scalar_type()) << ' ' << value.sizes() << '\n';
  hash.update(header.str());
  hash.update(std::string_view(static_cast<const char*>(value.const_data_ptr()), value.nbytes()));
}

}  // namespace

std::string weights_fingerprint(const Decoder& decoder) {
  Sha256 hash;
  hash.update(describe_function(decoder.config()) + "\n");
  for (const parallel::NamedParameter& parameter : decoder.parameters())
    hash_parameter(hash, parameter.name, parameter.value);
  return hash.hex_digest();
}

std::string weights_fingerprint(const fs::path& folder, at::ScalarType dtype,
                                const std::function<void()>& between) {
  const ModelConfig config = read_model_config(folder);
  const SafetensorsReader reader = open_checkpoint(config, folder);
  Sha256 hash;
  hash.update(describe_function(config) + "\n");
  for (const ParameterSpec& spec : parameter_specs(config)) {
    hash_parameter(hash, spec.name,
                   read_parameter(reader, config, spec.name, spec.shape).to(dtype));
    if (between) between();
  }
  return hash.hex_digest();
}

}  // namespace retort::models

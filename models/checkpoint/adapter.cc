#include "models/checkpoint/adapter.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <iomanip>
#include <map>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/random.h"
#include "models/checkpoint/checkpoint_check.h"
#include "models/lora/lora_specs.h"
#include "models/lora/lora_targets.h"
#include "models/parameters/checkpoint_tensor.h"
#include "models/safetensors/safetensors.h"
#include "models/safetensors/writer.h"

namespace retort::models {
namespace fs = std::filesystem;
namespace {

// In PEFT's files the names begin with those of its wrapper around the model.
constexpr const char* kPeftPrefix = "base_model.model.";

// Keeps an adapter's noise apart from what else is drawn by the run's seed.
constexpr uint64_t kAdapterNoise = 0x6c6f7261;

bool is_factor_a(const std::string& name) { return name.ends_with(".lora_A.weight"); }

// Draws the whole A [r, in], which is number `index` of the adapter's tensors, as PEFT's
// kaiming_uniform_(a = sqrt(5)) does.
at::Tensor random_factor(const std::vector<int64_t>& shape, uint64_t seed, uint64_t index) {
  at::Tensor tensor = at::empty(shape, at::TensorOptions().dtype(at::kFloat));
  auto* values = tensor.mutable_data_ptr<float>();
  const double bound = 1 / std::sqrt(static_cast<double>(shape[1]));
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    const double uniform = random_uniform(seed, index, static_cast<uint64_t>(i), kAdapterNoise);
    values[i] = static_cast<float>(bound * (2 * uniform - 1));
  }
  return tensor;
}

// Copies this rank's slice of a whole tensor, so that the whole one is not kept alive.
at::Tensor own_slice(const at::Tensor& whole, const ParameterSpec& spec, const Decoder& decoder) {
  const int64_t size = spec.shape[static_cast<size_t>(spec.shard.dim)];
  at::Tensor slice =
      at::empty(spec.shape, at::TensorOptions().dtype(decoder.dtype()).device(decoder.device()));
  slice.copy_(whole.narrow(spec.shard.dim, spec.shard.begin, size));
  return slice;
}

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Every tensor of the adapter must be there, whichever of them this rank reads, and no other.
void check_adapter_file(const SafetensorsReader& reader, const std::vector<TensorInfo>& expected,
                        const fs::path& file) {
  const auto refuse = [&](const std::string& tensor, const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument,
                file.string() + ": the adapter's tensor '" + tensor + "' " + what)
        .with("tensor", tensor);
  };
  std::set<std::string> known;
  for (const TensorInfo& info : expected) {
    const std::string name = kPeftPrefix + info.name;
    known.insert(name);
    if (!reader.contains(name))
      refuse(name, "is missing; was it made for another model, or for other target_modules?");
    if (reader.shape(name) != info.shape)
      refuse(name, "has another shape than this model and r ask for");
    if (!at::isFloatingType(reader.dtype(name))) refuse(name, "holds no floating-point numbers");
  }
  for (const std::string& name : reader.names())
    if (!known.contains(name))
      refuse(name, "belongs to no layer that adapter_config.json names as adapted");
}

// Returns a whole factor as it lies in the file, maybe among the rows of a fused one.
at::Tensor read_factor(const SafetensorsReader& reader, const ModelConfig& config,
                       const ParameterSpec& spec) {
  const CheckpointTensor tensor = adapter_tensor(config, spec.name, spec.shard.shape);
  const at::Tensor whole = reader.get(kPeftPrefix + tensor.name);
  return tensor.name == spec.name ? whole
                                  : whole.narrow(0, tensor.first_row, spec.shard.shape.at(0));
}

// Returns what a rank writes of its factor.
parallel::TensorPiece factor_piece(const ModelConfig& config,
                                   const parallel::NamedParameter& factor) {
  parallel::TensorPiece piece = parameter_piece(factor);
  CheckpointTensor tensor = adapter_tensor(config, piece.name, piece.shape);
  if (tensor.name != piece.name) {
    piece.dim = 0;
    piece.offset += tensor.first_row;
    piece.shape = std::move(tensor.shape);
  }
  piece.name = kPeftPrefix + tensor.name;
  return piece;
}

// Reads this rank's slices of the adapter in a folder.
NamedTensors read_factors(const Decoder& decoder, const LoraConfig& lora, const fs::path& folder) {
  const fs::path file = folder / kAdapterWeightsFile;
  const SafetensorsReader reader = open_weights(file);
  check_adapter_file(reader, adapter_infos(decoder.config(), lora, decoder.dtype()), file);

  NamedTensors tensors;
  for (const ParameterSpec& spec : lora_specs(decoder.config(), lora, decoder.placement()))
    tensors.emplace_back(spec.name,
                         own_slice(read_factor(reader, decoder.config(), spec), spec, decoder));
  return tensors;
}

}  // namespace

void attach_new_adapter(Decoder& decoder, const LoraConfig& lora, uint64_t seed) {
  // The counter of a tensor is its number in the whole model, so that a placement changes no value.
  std::map<std::string, uint64_t> index;
  for (const ParameterSpec& spec : lora_specs(decoder.config(), lora, {}))
    index.emplace(spec.name, index.size());

  // A parameter that is trained whole begins as it is in the model. An A is random and a B is zero,
  // so that the adapted model begins as the model.
  std::map<std::string, at::Tensor> own;
  for (const parallel::NamedParameter& parameter : decoder.parameters())
    own.emplace(parameter.name, parameter.value);

  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const ParameterSpec& spec : lora_specs(decoder.config(), lora, decoder.placement())) {
    if (const auto found = own.find(spec.name); found != own.end()) {
      tensors.emplace_back(spec.name, found->second.detach().clone());
      continue;
    }
    const auto options = at::TensorOptions().dtype(decoder.dtype()).device(decoder.device());
    tensors.emplace_back(
        spec.name,
        is_factor_a(spec.name)
            ? own_slice(random_factor(spec.shard.shape, seed, index.at(spec.name)), spec, decoder)
            : at::zeros(spec.shape, options));
  }
  decoder.attach_adapter(lora, tensors);
}

void check_adapter(const ModelConfig& config, const fs::path& folder) {
  const fs::path file = folder / kAdapterWeightsFile;
  check_adapter_file(open_weights(file),
                     adapter_infos(config, read_adapter_config(folder), at::kFloat), file);
}

void attach_adapter(Decoder& decoder, const fs::path& folder) {
  const LoraConfig lora = read_adapter_config(folder);
  decoder.attach_adapter(lora, read_factors(decoder, lora, folder));
}

void attach_first_adapter(Decoder& decoder, const fs::path& folder) {
  const LoraConfig lora = read_adapter_config(folder);
  if (decoder.lora() == nullptr || !same_adapters(decoder.config(), lora, *decoder.lora()))
    throw Error(ErrorCode::kMismatch, folder.string() +
                                          ": the adapter that training began with has other "
                                          "settings than the one that is trained");
  decoder.attach_first_adapter(read_factors(decoder, lora, folder));
}

std::string adapter_fingerprint(const fs::path& folder) {
  Sha256 hash;
  hash.update(read_file(folder / kAdapterWeightsFile));
  return hash.hex_digest();
}

int64_t adapter_labels(const fs::path& folder) {
  const SafetensorsReader reader = open_weights(folder / kAdapterWeightsFile);
  const std::string head = kPeftPrefix + std::string(kScoreHead);
  if (!reader.contains(head)) return 0;
  const std::vector<int64_t> shape = reader.shape(head);
  return shape.empty() ? 0 : shape.front();
}

std::vector<TensorInfo> adapter_infos(const ModelConfig& config, const LoraConfig& lora,
                                      at::ScalarType dtype) {
  std::vector<TensorInfo> infos;
  for (const ParameterSpec& spec : lora_specs(config, lora, {})) {
    CheckpointTensor tensor = adapter_tensor(config, spec.name, spec.shape);
    if (tensor.first_row == 0)
      infos.push_back({std::move(tensor.name), dtype, std::move(tensor.shape)});
  }
  return infos;
}

std::string describe_adapter(const ModelConfig& config, const LoraConfig& lora) {
  std::ostringstream text;
  text << std::setprecision(17) << "r " << lora.r << " scaling " << lora.scaling() << "\n";
  for (const AdaptedModule& module : adapted_modules(config, lora))
    text << module.name << "\n";
  for (const std::string& parameter : saved_parameters(config, lora))
    text << parameter << "\n";
  return text.str();
}

std::vector<TensorInfo> trained_infos(const Decoder& decoder, at::ScalarType dtype) {
  if (!decoder.lora()) return parameter_infos(decoder.config(), dtype);
  std::vector<TensorInfo> infos;
  for (ParameterSpec& spec : lora_specs(decoder.config(), *decoder.lora(), {}))
    infos.push_back({std::move(spec.name), dtype, std::move(spec.shape)});
  return infos;
}

CheckpointPart trained_part(const Decoder& decoder, at::ScalarType file_dtype) {
  if (!decoder.lora()) return decoder_part(decoder, file_dtype);

  // The file has PEFT's names, so that PEFT can load it.
  std::vector<TensorInfo> infos = adapter_infos(decoder.config(), *decoder.lora(), file_dtype);
  for (TensorInfo& info : infos)
    info.name = kPeftPrefix + info.name;
  CheckpointPart part{
      "", SafetensorsFiles::one(kAdapterWeightsFile, SafetensorsLayout(std::move(infos))), {}};
  for (const parallel::NamedParameter& parameter : decoder.trained_parameters()) {
    if (!parameter.shard.counted) continue;
    part.pieces.push_back(factor_piece(decoder.config(), parameter));
  }
  return part;
}

void write_trained_description(const Decoder& decoder, at::ScalarType file_dtype,
                               const fs::path& base, const fs::path& folder) {
  if (!decoder.lora()) return write_decoder_description(decoder, file_dtype, base, folder);
  copy_tokenizer_files(base, folder);
  const std::string model = fs::absolute(base).lexically_normal().string();
  const LoraConfig lora = with_named_targets(decoder.config(), *decoder.lora());
  write_file_atomically(folder / kAdapterConfigFile,
                        write_adapter_config(lora, model, decoder.config().classifies()));
}

}  // namespace retort::models

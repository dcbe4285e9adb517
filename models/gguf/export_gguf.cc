#include "models/gguf/export_gguf.h"

#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "models/checkpoint/checkpoint_check.h"
#include "models/gguf/gguf_encoding.h"
#include "models/gguf/gguf_family.h"
#include "models/gguf/gguf_tokenizer.h"
#include "models/gguf/gguf_writer.h"
#include "models/parameters/parameter_specs.h"
#include "models/safetensors/safetensors.h"

namespace retort::models {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRopeDivisors = "rope_freqs.weight";

GgufType matrix_type(GgufDtype dtype) {
  switch (dtype) {
    case GgufDtype::kF32: return GgufType::kF32;
    case GgufDtype::kF16: return GgufType::kF16;
    case GgufDtype::kBF16: return GgufType::kBF16;
    case GgufDtype::kQ8_0: return GgufType::kQ8_0;
  }
  return GgufType::kF32;
}

// Returns general.file_type, the type of most tensors by the numbers of llama.cpp.
uint32_t file_type(GgufDtype dtype) {
  switch (dtype) {
    case GgufDtype::kF32: return 0;
    case GgufDtype::kF16: return 1;
    case GgufDtype::kQ8_0: return 7;
    case GgufDtype::kBF16: return 32;
  }
  return 0;
}

GgufMetadata describe(const fs::path& model, const ModelConfig& config, GgufDtype dtype,
                      int64_t context_length) {
  constexpr uint32_t kQuantizationVersion = 2;  // of the blocks' layout
  GgufMetadata metadata;
  metadata.add("general.architecture", gguf_architecture(config.family));
  metadata.add("general.type", "model");
  metadata.add("general.name", fs::canonical(model).filename().string());
  metadata.add("general.file_type", file_type(dtype));
  if (dtype == GgufDtype::kQ8_0) metadata.add("general.quantization_version", kQuantizationVersion);
  add_gguf_settings(config, context_length, metadata);
  add_gguf_tokenizer(model, config, metadata);
  return metadata;
}

// Reads a tensor of the checkpoint as it lies in the mapping, with its rows in the order of the
// GGUF file.
at::Tensor read_rows(const SafetensorsReader& reader, const ModelConfig& config,
                     const ParameterSpec& spec) {
  const at::Tensor values = reader.get(spec.name);
  if (!at::isFloatingType(values.scalar_type())) {
    throw Error(ErrorCode::kInvalidArgument, "tensor '" + spec.name + "' holds " +
                                                 c10::toString(values.scalar_type()) +
                                                 ", expected floating-point numbers")
        .with("tensor", spec.name);
  }
  return gguf_interleaves(config, spec.name) ? gguf_interleave(values, config.head_dim) : values;
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

}  // namespace

GgufDtype parse_gguf_dtype(const std::string& name) {
  if (name == "f32") return GgufDtype::kF32;
  if (name == "f16") return GgufDtype::kF16;
  if (name == "bf16") return GgufDtype::kBF16;
  if (name == "q8_0") return GgufDtype::kQ8_0;
  throw Error(ErrorCode::kInvalidArgument,
              "unknown dtype '" + name + "' for GGUF; use f32, f16, bf16 or q8_0")
      .with("dtype", name);
}

GgufDtype gguf_dtype_of(const fs::path& folder) {
  const std::string dtype = read_model_config(folder).torch_dtype;
  if (dtype == "float16") return GgufDtype::kF16;
  return dtype == "bfloat16" ? GgufDtype::kBF16 : GgufDtype::kF32;
}

GgufSummary export_gguf(const fs::path& model, const fs::path& output,
                        const GgufExportOptions& options) {
  // Everything that can be refused is refused before the first byte is written.
  const ModelConfig config = read_model_config(model);
  const int64_t context_length =
      options.context_length > 0 ? options.context_length : config.max_position_embeddings;
  check_gguf_expressible(config, context_length);
  const SafetensorsReader reader = open_checkpoint(config, model);
  const GgufMetadata metadata = describe(model, config, options.dtype, context_length);

  // The list of tensors has the order of the checkpoint; the rotary divisors stand before them.
  const std::vector<ParameterSpec> specs = parameter_specs(config);
  const at::Tensor divisors = gguf_rope_divisors(config);
  std::vector<GgufTensor> tensors;
  if (divisors.defined())
    tensors.push_back({kRopeDivisors, GgufType::kF32, divisors.sizes().vec()});
  for (const ParameterSpec& spec : specs) {
    const bool matrix = spec.kind == ParameterKind::kMatrix;
    tensors.push_back({gguf_tensor_name(spec.name),
                       matrix ? matrix_type(options.dtype) : GgufType::kF32, spec.shape});
  }

  // Tensors are converted one after the other, so that no two are in memory.
  GgufWriter writer(output, metadata, tensors);
  auto next = tensors.begin();
  if (divisors.defined()) writer.write((next++)->name, bytes_of(divisors));
  for (const ParameterSpec& spec : specs) {
    const at::Tensor encoded = gguf_encode(spec.name, read_rows(reader, config, spec), next->type);
    writer.write((next++)->name, bytes_of(encoded));
  }
  writer.commit();
  return {gguf_architecture(config.family), static_cast<int64_t>(tensors.size()),
          writer.size_bytes()};
}

}  // namespace retort::models

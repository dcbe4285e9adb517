#include "models/checkpoint/checkpoint_check.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>

#include <cstring>
#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "models/checkpoint/stored_parameters.h"
#include "models/safetensors/file_checksums.h"

namespace retort::models {
namespace {

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

// Old checkpoints hold buffers, and some a second copy of a tied head. The former are computed anew
// and the latter is shared, so neither is read.
bool is_redundant(const std::string& name, const ModelConfig& config) {
  return name.ends_with(".rotary_emb.inv_freq") || (config.tie_word_embeddings && name == kHead);
}

bool same_values(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return false;
  if (a.scalar_type() != b.scalar_type()) return at::equal(a.to(at::kDouble), b.to(at::kDouble));
  // NaN differs from itself for at::equal, but two copies of the same bits are the same.
  return std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0 || at::equal(a, b);
}

// Finds the tensor of the files whose name differs from `name` by what stands before it, as a
// wrapper (torch.compile, DDP, PEFT) or a base model without a head leaves it; "" if there is none.
std::string prefixed_name(const SafetensorsReader& reader, const std::string& name) {
  for (const std::string& other : reader.names())
    if (other.ends_with("." + name) || name.ends_with("." + other)) return other;
  return "";
}

using Mismatch = std::function<Error(const std::string& name, const std::string& what)>;

// A program that ties by config.json alone would drop a head that was trained on its own, and say
// nothing.
void check_tied_head(const SafetensorsReader& reader, const ModelConfig& config,
                     const Mismatch& mismatch) {
  if (!config.tie_word_embeddings || !reader.contains(kHead)) return;
  if (same_values(reader.get(kEmbedding), reader.get(kHead))) return;
  throw mismatch(kHead, std::string("is not the same as '") + kEmbedding +
                            "', and config.json says that the two are one; write "
                            "\"tie_word_embeddings\": false there to use both (transformers 5 "
                            "does so with a warning), or take the head out of the files");
}

void check_tensors(const SafetensorsReader& reader, const ModelConfig& config,
                   const std::filesystem::path& folder) {
  const Mismatch mismatch = [&](const std::string& name, const std::string& what) {
    return Error(ErrorCode::kInvalidArgument, folder.string() + ": tensor '" + name + "' " + what)
        .with("folder", folder.string())
        .with("tensor", name);
  };
  std::set<std::string> expected;
  for (const TensorInfo& tensor : checkpoint_infos(config, at::kFloat)) {
    if (!reader.contains(tensor.name)) {
      const std::string other = prefixed_name(reader, tensor.name);
      throw mismatch(tensor.name, "is missing" + (other.empty() ? std::string()
                                                                : "; the files have '" + other +
                                                                      "', which must be renamed"));
    }
    const std::vector<int64_t> shape = reader.shape(tensor.name);
    if (shape != tensor.shape) {
      std::ostringstream text;
      text << "has shape " << at::IntArrayRef(shape) << ", config.json asks for "
           << at::IntArrayRef(tensor.shape);
      throw mismatch(tensor.name, text.str());
    }
    expected.insert(tensor.name);
  }
  for (const std::string& name : reader.names()) {
    if (!expected.contains(name) && !is_redundant(name, config))
      throw mismatch(name, "does not belong to the model of config.json");
  }
  check_tied_head(reader, config, mismatch);
}

}  // namespace

SafetensorsReader open_weights(const std::filesystem::path& path) {
  try {
    return SafetensorsReader(path);
  } catch (const Error& e) {
    // A file that is no checkpoint is wrong input; only one that was a checkpoint is a damaged one.
    if (e.code() != ErrorCode::kCorrupt || is_damage(e)) throw;
    throw Error(ErrorCode::kInvalidArgument, e.message(), e.origin(), e.context());
  }
}

SafetensorsReader open_checkpoint(const ModelConfig& config, const std::filesystem::path& folder) {
  SafetensorsReader reader = open_weights(folder);
  if (config.tie_word_embeddings && reader.contains(kHead) && !reader.contains(kEmbedding))
    reader.rename(kHead, kEmbedding);
  check_tensors(reader, config, folder);
  return reader;
}

}  // namespace retort::models

#include "models/checkpoint_check.h"

#include <ATen/core/Tensor.h>

#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "models/checkpoint_tensors.h"

namespace retort::models {
namespace {

// Buffers of old checkpoints and the second copy of a tied head: recomputed or shared, so not read.
bool is_redundant(const std::string& name, const ModelConfig& config) {
  return name.ends_with(".rotary_emb.inv_freq") ||
         (config.tie_word_embeddings && name == "lm_head.weight");
}

}  // namespace

void check_checkpoint(const SafetensorsReader& reader, const ModelConfig& config,
                      const std::filesystem::path& folder) {
  auto mismatch = [&](const std::string& name, const std::string& what) {
    return Error(ErrorCode::kMismatch, folder.string() + ": tensor '" + name + "' " + what)
        .with("folder", folder.string())
        .with("tensor", name);
  };
  std::set<std::string> expected;
  for (const TensorInfo& tensor : checkpoint_infos(config, at::kFloat)) {
    if (!reader.contains(tensor.name)) throw mismatch(tensor.name, "is missing");
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
}

}  // namespace retort::models

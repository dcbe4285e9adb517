#include "engines/weights/weight_files.h"

#include <ATen/core/Tensor.h>

#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "models/checkpoint/checkpoint.h"
#include "models/gguf/export_gguf.h"
#include "models/safetensors/safetensors.h"

namespace retort::engines {
namespace fs = std::filesystem;
namespace {

constexpr const char* kVersionPrefix = "version-";

std::string version_name(uint64_t version) { return kVersionPrefix + std::to_string(version); }

std::vector<std::pair<std::string, at::Tensor>> tensors_of(const models::Decoder& decoder) {
  std::vector<std::pair<std::string, at::Tensor>> tensors = models::checkpoint_tensors(decoder);
  // A server may keep a copy of a tied head and go on answering with the old one, so the head is
  // written beside the embedding that it is tied to.
  if (decoder.config().tie_word_embeddings)
    tensors.emplace_back("lm_head.weight", decoder.head().weight.detach());
  return tensors;
}

// Removes all versions `but` some, also what a killed process left unfinished.
void remove_versions(const fs::path& folder, const std::set<std::string>& but) {
  std::vector<fs::path> old;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(kVersionPrefix) && !but.contains(name)) old.push_back(entry.path());
  }
  for (const fs::path& path : old)
    fs::remove_all(path);
}

// Removes the folder at the end of its scope, also when an exception ends that.
struct RemovedFolder {
  fs::path path;
  ~RemovedFolder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
};

// The version before the new one stays, since the server may still be reading it.
void remove_older(const fs::path& folder, uint64_t version) {
  remove_versions(folder, {version_name(version), version_name(version - 1)});
}

}  // namespace

WeightFiles::WeightFiles(const EngineWeightOptions& options, std::string name, fs::path tokenizer)
    : route_(options.via),
      folder_(fs::absolute(options.folder)),
      name_(std::move(name)),
      tokenizer_(std::move(tokenizer)) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error)
    throw Error(ErrorCode::kUnavailable,
                "weights.folder '" + folder_.string() + "' cannot be made: " + error.message());
}

std::string WeightFiles::write(const models::Decoder& decoder, uint64_t version) {
  if (route_ != WeightRoute::kGguf) {
    const fs::path folder = folder_ / version_name(version);
    remove_older(folder_, version);  // first, for the room
    fs::remove_all(folder);
    write_folder_atomically(folder, [&](const fs::path& path) { write_folder(decoder, path); });
    return folder;
  }

  // The exporter reads a model folder, so one is written first and removed again.
  const fs::path file = folder_ / (name_ + ".gguf"), checkpoint = folder_ / version_name(version);
  remove_versions(folder_, {});
  const RemovedFolder removed{checkpoint};
  write_folder_atomically(checkpoint, [&](const fs::path& path) {
    models::save_decoder(decoder, decoder.dtype(), tokenizer_, path);
  });
  models::export_gguf(checkpoint, file, {.dtype = models::gguf_dtype_of(checkpoint)});
  return file;
}

void WeightFiles::write_folder(const models::Decoder& decoder, const fs::path& folder) const {
  models::write_safetensors_folder(folder, tensors_of(decoder));
  models::write_decoder_description(decoder, decoder.dtype(), tokenizer_, folder);
}

}  // namespace retort::engines

// The student's weights as files that an engine opens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "engines/contract/options.h"
#include "models/decoder/decoder.h"

namespace retort::engines {

class WeightFiles {
 public:
  // `name`: of the model at the server, which a GGUF file is called by. `tokenizer`: the model
  // folder whose tokenizer files go along. kUnavailable if the folder cannot be made.
  WeightFiles(const EngineWeightOptions& options, std::string name,
              std::filesystem::path tokenizer);

  // Writes all weights, complete or not at all; returns what the engine is to load:
  //   folder, repository: <folder>/version-<N>, a Hugging Face folder; older ones but the last are
  //     removed before. A tied head stands in it a second time, as lm_head.weight: vLLM's reload
  //     leaves the packed copy of a head that no tensor names as it was.
  //   gguf: <folder>/<name>.gguf in the checkpoint's dtype, which takes the last one's place
  // Nobody else writes there: folders of versions that are not needed are removed first.
  // Disk: one copy, of a folder two; while a GGUF file is written a folder beside it.
  // Errors: as save_decoder and export_gguf.
  std::string write(const models::Decoder& decoder, uint64_t version);

 private:
  void write_folder(const models::Decoder& decoder, const std::filesystem::path& folder) const;

  WeightRoute route_;
  std::filesystem::path folder_;
  std::string name_;
  std::filesystem::path tokenizer_;
};

}  // namespace retort::engines

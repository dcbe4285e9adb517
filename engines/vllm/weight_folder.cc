#include "engines/vllm/weight_folder.h"

#include <string>

#include "engines/weight_folder.h"

namespace retort::engines::vllm {
namespace {

constexpr const char* kHead = "lm_head.weight";

}  // namespace

void check_weight_folder(const std::filesystem::path& folder) {
  const WeightFolder read(folder);
  if (!read.weights.contains(kHead))
    refuse_folder(
        ErrorCode::kMismatch, folder,
        std::string("has no ") + kHead +
            (read.config.tie_word_embeddings
                 ? "; vLLM keeps a copy of a tied head and would answer with the old one, so "
                   "the folder must carry it beside the embedding"
                 : ""));
  if (read.weights.shape(kHead) != read.weights.shape(kEmbeddingName))
    refuse_folder(ErrorCode::kMismatch, folder,
                  std::string(kHead) + " has another shape than " + kEmbeddingName);
}

}  // namespace retort::engines::vllm

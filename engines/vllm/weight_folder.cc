#include "engines/vllm/weight_folder.h"

#include <string>

#include "base/error.h"
#include "models/config.h"
#include "models/safetensors.h"

namespace retort::engines::vllm {
namespace {

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

[[noreturn]] void refuse_folder(ErrorCode code, const std::filesystem::path& folder,
                                const std::string& what) {
  throw Error(code, folder.string() + ": " + what);
}

}  // namespace

void check_weight_folder(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (!folder.is_absolute())
    refuse_folder(ErrorCode::kInvalidArgument, folder,
                  "the path is not absolute, and the server stands in another folder");
  if (!std::filesystem::is_directory(folder, ignored))
    refuse_folder(ErrorCode::kInvalidArgument, folder,
                  "is no folder; vLLM takes weights as a model folder");

  const models::ModelConfig config = models::read_model_config(folder);
  const models::SafetensorsReader weights(folder);
  if (!weights.contains(kEmbedding))
    refuse_folder(ErrorCode::kMismatch, folder, std::string("has no ") + kEmbedding);
  if (!weights.contains(kHead))
    refuse_folder(
        ErrorCode::kMismatch, folder,
        std::string("has no ") + kHead +
            (config.tie_word_embeddings
                 ? "; vLLM keeps a copy of a tied head and would answer with the old one, so "
                   "the folder must carry it beside the embedding"
                 : ""));
  if (weights.shape(kHead) != weights.shape(kEmbedding))
    refuse_folder(ErrorCode::kMismatch, folder,
                  std::string(kHead) + " has another shape than " + kEmbedding);
}

}  // namespace retort::engines::vllm

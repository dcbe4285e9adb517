#include "engines/vllm/weights.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "engines/weights/weight_folder.h"
#include "engines/wire/json_object.h"

namespace retort::engines::vllm {
namespace {

using Json = nlohmann::json;

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

std::string reload_question(const std::string& folder) {
  const Json body = {{"method", "reload_weights"}, {"kwargs", {{"weights_path", folder}}}};
  return body_text(body, "weights.folder");
}

Empty check_reloaded(const std::string& json) {
  const Json answer = json_object_or_null(json);
  const Json results = answer.is_object() ? answer.value("results", Json()) : Json();
  const bool good =
      results.is_array() && !results.empty() &&
      std::all_of(results.begin(), results.end(), [](const Json& one) { return one.is_null(); });
  if (!good)
    throw Error(ErrorCode::kMismatch,
                "/collective_rpc reload_weights: expected {\"results\": [null, ...]}, a null of "
                "each worker: " +
                    json_excerpt(json));
  return {};
}

Empty check_cache_reset(const std::string& json) {
  if (json.empty()) return {};
  const Json answer = json_object_or_null(json);
  const Json success = answer.is_object() ? answer.value("success", Json()) : Json();
  if (!success.is_boolean())
    throw Error(ErrorCode::kMismatch,
                "/reset_prefix_cache: expected {\"success\": true}: " + json_excerpt(json));
  if (!success.get<bool>())
    throw Error(ErrorCode::kUnavailable,
                "/reset_prefix_cache: the server kept what it computed with the weights before; "
                "are requests of others running?");
  return {};
}

}  // namespace retort::engines::vllm

#include "engines/vllm/weight_answers.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_text.h"

namespace retort::engines::vllm {
namespace {

using Json = nlohmann::json;

// Null if it is no JSON object.
Json parsed_or_null(const std::string& text) {
  if (json_nesting(text) > kMaxJsonNesting) return nullptr;
  Json answer = Json::parse(text, nullptr, false);
  return answer.is_object() ? answer : Json();
}

std::string excerpt(const std::string& text) { return json_quote(text.substr(0, 200)); }

}  // namespace

std::string reload_question(const std::string& folder) {
  const Json body = {{"method", "reload_weights"}, {"kwargs", {{"weights_path", folder}}}};
  try {
    return body.dump();
  } catch (const Json::exception&) {
    throw Error(ErrorCode::kInvalidArgument, "weights.folder: holds bytes that are not UTF-8");
  }
}

Empty check_reloaded(const std::string& json) {
  const Json answer = parsed_or_null(json);
  const Json results = answer.is_object() ? answer.value("results", Json()) : Json();
  const bool good =
      results.is_array() && !results.empty() &&
      std::all_of(results.begin(), results.end(), [](const Json& one) { return one.is_null(); });
  if (!good)
    throw Error(ErrorCode::kMismatch,
                "/collective_rpc reload_weights: expected {\"results\": [null, ...]}, a null of "
                "each worker: " +
                    excerpt(json));
  return {};
}

Empty check_cache_reset(const std::string& json) {
  if (json.empty()) return {};
  const Json answer = parsed_or_null(json);
  const Json success = answer.is_object() ? answer.value("success", Json()) : Json();
  if (!success.is_boolean())
    throw Error(ErrorCode::kMismatch,
                "/reset_prefix_cache: expected {\"success\": true}: " + excerpt(json));
  if (!success.get<bool>())
    throw Error(ErrorCode::kUnavailable,
                "/reset_prefix_cache: the server kept what it computed with the weights before; "
                "are requests of others running?");
  return {};
}

}  // namespace retort::engines::vllm

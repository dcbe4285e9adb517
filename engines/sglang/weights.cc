#include "engines/sglang/weights.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_text.h"
#include "engines/wire/json_object.h"

namespace retort::engines::sglang {
namespace {

using Json = nlohmann::json;

[[noreturn]] void not_loaded(const std::string& what) { throw Error(ErrorCode::kMismatch, what); }

}  // namespace

std::string update_question(const std::string& folder, const std::string& version) {
  const Json body = {{"model_path", folder},
                     {"load_format", "auto"},
                     {"weight_version", version},
                     {"flush_cache", true},
                     {"abort_all_requests", false},
                     {"is_async", false},
                     {"torch_empty_cache", false},
                     {"keep_pause", false},
                     {"recapture_cuda_graph", false},
                     {"token_step", 0},
                     {"manifest", nullptr}};
  return body_text(body, "weights.folder");
}

Empty check_updated(const std::string& json) {
  const Json answer = json_object_or_null(json);
  const Json success = answer.is_object() ? answer.value("success", Json()) : Json();
  if (!success.is_boolean() || !success.get<bool>())
    not_loaded("/update_weights_from_disk: expected {\"success\": true, ...}: " +
               json_excerpt(json));
  return {};
}

Empty check_flushed(const std::string& text) {
  if (!text.starts_with("Cache flushed."))
    not_loaded("/flush_cache: expected \"Cache flushed.\": " + json_excerpt(text));
  return {};
}

Empty check_loaded(const ModelInfo& model, const std::string& folder, const std::string& version) {
  if (model.model_path != folder)
    not_loaded("/model_info: the server serves " + json_quote(model.model_path) + ", and " +
               json_quote(folder) + " was loaded");
  if (model.weight_version != version)
    not_loaded("/model_info: weight_version is " + json_quote(model.weight_version) + ", and " +
               json_quote(version) + " was loaded");
  return {};
}

}  // namespace retort::engines::sglang

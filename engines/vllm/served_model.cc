#include "engines/vllm/served_model.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_text.h"

namespace retort::engines::vllm {
namespace {

using Json = nlohmann::json;

Json parsed_object(const std::string& text, const std::string& door) {
  if (json_nesting(text) <= kMaxJsonNesting) {
    Json answer = Json::parse(text, nullptr, false);
    if (answer.is_object()) return answer;
  }
  throw Error(ErrorCode::kCorrupt, door + ": the answer is no JSON object");
}

ServedModel one_model(const Json& entry) {
  ServedModel model;
  if (entry.is_object() && entry.contains("id") && entry["id"].is_string())
    model.name = entry["id"].get<std::string>();
  if (model.name.empty()) throw Error(ErrorCode::kCorrupt, "/v1/models: a model without an id");

  const auto length = entry.find("max_model_len");
  if (length == entry.end() || length->is_null()) return model;
  if (!length->is_number_integer() || length->get<int64_t>() < 1)
    throw Error(ErrorCode::kCorrupt, "/v1/models: max_model_len is " + length->dump());
  model.context_tokens = length->get<int64_t>();
  return model;
}

}  // namespace

ServedModel find_served_model(const std::string& json, const std::string& wanted) {
  const Json answer = parsed_object(json, "/v1/models");
  const auto data = answer.find("data");
  if (data == answer.end() || !data->is_array() || data->empty())
    throw Error(ErrorCode::kCorrupt, "/v1/models: lists no model");

  std::string names;
  for (const Json& entry : *data) {
    ServedModel model = one_model(entry);
    if (model.name == wanted || (wanted.empty() && data->size() == 1)) return model;
    names += (names.empty() ? "" : ", ") + json_quote(model.name);
  }
  if (wanted.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "served_model: the server has several models, name one of them: " + names);
  throw Error(ErrorCode::kMismatch, "served_model: the server has no model " + json_quote(wanted) +
                                        ", but these: " + names);
}

std::string read_version(const std::string& json) {
  const Json answer = parsed_object(json, "/version");
  const auto version = answer.find("version");
  if (version == answer.end() || !version->is_string())
    throw Error(ErrorCode::kCorrupt, "/version: the answer has no version");
  return version->get<std::string>();
}

}  // namespace retort::engines::vllm

#include "engines/wire/model_list.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_text.h"
#include "engines/wire/json_object.h"

namespace retort::engines {
namespace {

ListedModel one_model(const nlohmann::json& entry) {
  ListedModel model;
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

ListedModel find_listed_model(const std::string& json, const std::string& wanted) {
  const nlohmann::json answer = json_object(json, "/v1/models");
  const auto data = answer.find("data");
  if (data == answer.end() || !data->is_array() || data->empty())
    throw Error(ErrorCode::kCorrupt, "/v1/models: lists no model");

  // All names are gathered on the way, so that an error can list what there is.
  std::string names;
  for (const nlohmann::json& entry : *data) {
    ListedModel model = one_model(entry);
    if (model.name == wanted || (wanted.empty() && data->size() == 1)) return model;
    names += (names.empty() ? "" : ", ") + json_quote(model.name);
  }
  if (wanted.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "served_model: the server has several models, name one of them: " + names);
  throw Error(ErrorCode::kMismatch, "served_model: the server has no model " + json_quote(wanted) +
                                        ", but these: " + names);
}

}  // namespace retort::engines

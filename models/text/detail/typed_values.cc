#include "models/text/detail/typed_values.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/json_text.h"
#include "models/text/detail/python_numbers.h"
#include "models/text/detail/said_values.h"

namespace retort::models::detail {
namespace {

using Schema = nlohmann::json;

void add_if_text(const Schema& value, std::vector<std::string>& to) {
  if (value.is_string()) to.push_back(value.get<std::string>());
}

// "type", its list, and the choices of anyOf and oneOf, in this order; `nullable` is how
// transformers' get_json_schema marks an Optional.
void add_types(const Schema& schema, std::vector<std::string>& to) {
  if (!schema.is_object()) return;
  if (const auto type = schema.find("type"); type != schema.end()) {
    add_if_text(*type, to);
    if (type->is_array())
      for (const Schema& each : *type)
        add_if_text(each, to);
  }
  for (const char* choices : {"anyOf", "oneOf"})
    if (const auto found = schema.find(choices); found != schema.end() && found->is_array())
      for (const Schema& choice : *found)
        add_types(choice, to);

  const auto nullable = schema.find("nullable");
  if (nullable != schema.end() && nullable->is_boolean() && nullable->get<bool>() &&
      std::find(to.begin(), to.end(), "null") == to.end())
    to.emplace_back("null");
}

std::string lowered(std::string_view text) {
  std::string lower(text);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c | 0x20);
  return lower;
}

std::optional<std::string> as_integer(std::string_view value) {
  if (std::optional<std::string> whole = python_int(value)) return whole;
  const std::optional<double> number = python_float(value);  // a whole number written as 3.0
  if (!number || std::trunc(*number) != *number) return std::nullopt;
  return whole_json(*number);
}

std::optional<std::string> as_number(std::string_view value) {
  const std::optional<double> number = python_float(value);
  if (!number) return std::nullopt;
  const bool whole = std::trunc(*number) == *number && value.find('.') == value.npos;
  return whole ? whole_json(*number) : float_json(*number);
}

std::optional<std::string> as_type(const std::string& type, std::string_view value) {
  if (type == "integer") return as_integer(value);
  if (type == "number") return as_number(value);
  if (type == "boolean") {
    const std::string word = lowered(trimmed(value));
    if (word == "true" || word == "1") return "true";
    if (word == "false" || word == "0") return "false";
  }
  if (type == "null") {
    const std::string_view word = trimmed(value);
    if (word == "null" || word == "None") return "null";
  }
  if (type == "object" || type == "array") {
    std::optional<std::string> json = read_json(value);
    if (json && json->front() == (type == "object" ? '{' : '[')) return json;
  }
  return std::nullopt;
}

}  // namespace

ParameterTypes::ParameterTypes(std::string_view tools_json) {
  const bool deep = json_nesting(tools_json) > kMaxJsonNesting;
  const Schema tools =
      deep ? Schema() : Schema::parse(tools_json, nullptr, /*allow_exceptions=*/false);
  if (!tools.is_array())
    throw Error(ErrorCode::kInvalidArgument,
                "the tools of a conversation are no JSON array of schemas, or nest deeper than " +
                    std::to_string(kMaxJsonNesting));

  const auto object_in = [](const Schema& in, const char* name) -> const Schema* {
    if (!in.is_object()) return nullptr;
    const auto found = in.find(name);
    return found != in.end() && found->is_object() ? &*found : nullptr;
  };
  for (const Schema& tool : tools) {
    const Schema* function = object_in(tool, "function");
    if (function == nullptr) function = &tool;
    if (!function->is_object() || !function->contains("name")) continue;
    const Schema& name = function->at("name");
    const Schema* parameters = object_in(*function, "parameters");
    const Schema* properties = parameters ? object_in(*parameters, "properties") : nullptr;
    if (!name.is_string() || properties == nullptr) continue;
    auto& types = types_[name.get<std::string>()];
    for (const auto& [parameter, schema] : properties->items())
      add_types(schema, types[parameter]);
  }
}

std::string ParameterTypes::typed(const std::string& tool, const std::string& parameter,
                                  std::string_view value) const {
  const auto named = types_.find(tool);
  if (named == types_.end()) return json_quote(value);
  const auto types = named->second.find(parameter);
  if (types == named->second.end()) return json_quote(value);
  for (const std::string& type : types->second)
    if (const std::optional<std::string> json = as_type(type, value)) return *json;
  return json_quote(value);
}

}  // namespace retort::models::detail

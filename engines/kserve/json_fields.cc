#include "engines/kserve/json_fields.h"

#include "base/error.h"
#include "base/json_text.h"

namespace retort::engines::kserve {
namespace {

constexpr size_t kMaxDims = 8;

const Json& field(const Json& object, const std::string& name, const std::string& where) {
  if (!object.is_object())
    throw Error(ErrorCode::kCorrupt, where + " is " + shown(object) + "; expected an object");
  const auto found = object.find(name);
  if (found == object.end())
    throw Error(ErrorCode::kCorrupt, where + ": has no field " + in_quotes(name));
  return *found;
}

}  // namespace

Json parse_json(std::string_view text) {
  // A parser goes down one call for each level.
  const bool deep = json_nesting(text) > kMaxJsonNesting;
  Json value = deep ? Json(Json::value_t::discarded) : Json::parse(text, nullptr, false);
  if (value.is_discarded())
    throw Error(ErrorCode::kCorrupt, "expected JSON, found " + in_quotes(text));
  return value;
}

std::string text_field(const Json& object, const std::string& name, const std::string& where) {
  const Json& value = field(object, name, where);
  if (!value.is_string())
    throw Error(ErrorCode::kCorrupt,
                where + ": " + name + " is " + shown(value) + "; expected a string");
  return value.get<std::string>();
}

const Json& list_field(const Json& object, const std::string& name, const std::string& where) {
  const Json& value = field(object, name, where);
  if (!value.is_array())
    throw Error(ErrorCode::kCorrupt,
                where + ": " + name + " is " + shown(value) + "; expected a list");
  return value;
}

std::vector<int64_t> shape_field(const Json& object, const std::string& where) {
  const Json& list = list_field(object, "shape", where);
  std::vector<int64_t> shape;
  for (const Json& size : list) {
    const bool whole = size.is_number_integer() && list.size() <= kMaxDims;
    if (!whole || (size.is_number_unsigned() && size.get<uint64_t>() > uint64_t{INT32_MAX}) ||
        size.get<int64_t>() < -1)
      throw Error(ErrorCode::kCorrupt, where + ": shape is " + shown(list) + "; expected sizes");
    shape.push_back(size.get<int64_t>());
  }
  return shape;
}

std::string in_quotes(std::string_view text) {
  constexpr size_t kShown = 80;
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string result = "\"";
  for (const char c : text.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      result += c;
    } else {
      result += "\\x";
      result += kHex[byte >> 4];
      result += kHex[byte & 15];
    }
  }
  return result + (text.size() > kShown ? "...\"" : "\"");
}

std::string shown(const Json& value) {
  constexpr auto kReplace = Json::error_handler_t::replace;
  const std::string text = in_quotes(value.dump(-1, ' ', false, kReplace));
  return text.substr(1, text.size() - 2);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t size : shape)
    text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

}  // namespace retort::engines::kserve

#include "recipes/data/detail/row.h"

#include <algorithm>
#include <charconv>
#include <iterator>

#include "base/error.h"
#include "base/json_text.h"

namespace retort::data::detail {
namespace {

// Returns nlohmann's text without its own prefix "[json.exception...] parse error at line 1, column
// 7: ".
std::string parse_reason(const std::string& what) {
  const size_t at = what.find(": ");
  return at == std::string::npos ? what : what.substr(at + 2);
}

bool is_index(std::string_view text, size_t& index) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  return error == std::errc() && end == text.data() + text.size();
}

std::string quoted_keys(std::initializer_list<std::string_view> names) {
  std::string text;
  for (const std::string_view name : names)
    text += (text.empty() ? "" : " + ") + std::string(name);
  return text;
}

}  // namespace

void bad_row(const std::string& what) { throw Error(ErrorCode::kInvalidArgument, what); }

std::string a_type(const Json& value) {
  if (value.is_null()) return "null";
  const std::string name = value.type_name();
  return (name == "array" || name == "object" ? "an " : "a ") + name;
}

namespace {

// Finds a column of this name, else what the names between its dots lead to, one inside the other.
// An item of a list is named by its number, from 0.
const Json* find_column(const Json& object, std::string_view name) {
  if (const auto whole = object.find(std::string(name)); whole != object.end()) return &*whole;
  const Json* at = &object;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string part(name.substr(begin, end - begin));
    if (at->is_object() && at->contains(part)) {
      at = &at->at(part);
    } else if (size_t index = 0; at->is_array() && is_index(part, index) && index < at->size()) {
      at = &at->at(index);
    } else {
      return nullptr;
    }
    begin = end + 1;
  }
  return at;
}

// Does as trl.trainer.utils.remove_none_values (TRL 1.16): it removes entries of objects, at every
// depth. The items of a list stay, so that their places do.
void remove_none_values(Json& value) {
  if (value.is_object()) {
    for (auto entry = value.begin(); entry != value.end();)
      entry = entry->is_null() ? value.erase(entry) : std::next(entry);
  }
  if (value.is_structured())
    for (Json& inner : value)
      remove_none_values(inner);
}

}  // namespace

Row::Row(std::string_view line, const Source& source) : source_(source) {
  if (json_nesting(line) > kMaxJsonNesting)
    bad_row("the row is nested deeper than " + std::to_string(kMaxJsonNesting) + " levels");

  // A cut file is the usual cause, so it has a message of its own.
  try {
    object_ = Json::parse(line.begin(), line.end());
  } catch (const nlohmann::json::parse_error& error) {
    const bool cut = error.byte >= line.size() + 1;
    bad_row(std::string("malformed JSON") +
            (cut ? ": the line ends in the middle of a value (cut file?)" : "") + " at column " +
            std::to_string(std::min(error.byte, line.size() + 1)) + ": " +
            parse_reason(error.what()));
  } catch (const nlohmann::json::exception& error) {  // e.g. a number beyond double
    bad_row(std::string("malformed JSON: ") + error.what());
  }

  if (object_.is_array())
    bad_row(
        "the line is a JSON array; expected an object on each line, or a file that is one array of "
        "objects");
  if (!object_.is_object()) bad_row("the line is " + a_type(object_) + "; expected an object");
  if (source_.remove_none_values)
    for (Json& value : object_)
      remove_none_values(value);
  // A mapped column that is missing is a mistake in the mapping, not a row without that key.
  for (const auto& [key, name] : source_.columns)
    if (find_column(object_, name) == nullptr)
      bad_row("column '" + name + "' (columns: {" + key + ": " + name +
              "}) is missing; the row has: " + column_names());
}

std::string_view Row::column_of(std::string_view key) const {
  const auto mapped = source_.columns.find(std::string(key));
  if (mapped != source_.columns.end()) return mapped->second;
  // A column that is mapped to another key is no longer found under its own name.
  for (const auto& entry : source_.columns)
    if (entry.second == key) return {};
  return key;
}

const Json* Row::column(std::string_view name) const {
  const Json* found = find_column(object_, name);
  return found == nullptr || found->is_null() ? nullptr : found;
}

const Json* Row::find(std::string_view key) const {
  const std::string_view name = column_of(key);
  return name.empty() ? nullptr : column(name);
}

const Json& Row::require(std::string_view key) const {
  const Json* value = find(key);
  if (!value)
    bad_row("'" + std::string(key) + "' is missing or null; the row has: " + column_names());
  return *value;
}

const std::string& Row::text(std::string_view key) const {
  const Json& value = require(key);
  if (!value.is_string())
    bad_row("'" + std::string(key) + "' is " + a_type(value) + "; expected a string");
  return value.get_ref<const std::string&>();
}

std::string Row::optional_text(std::string_view key) const {
  return has(key) ? text(key) : std::string();
}

std::string Row::column_names() const {
  std::string text;
  for (const auto& item : object_.items())
    text += (text.empty() ? "" : ", ") + item.key();
  return text.empty() ? "no columns" : text;
}

std::vector<std::pair<std::string, std::string>> Row::other_fields(
    std::vector<std::string_view> used) const {
  for (std::string_view& key : used)
    key = column_of(key);
  std::vector<std::pair<std::string, std::string>> fields;
  for (const auto& item : object_.items()) {
    if (std::find(used.begin(), used.end(), item.key()) != used.end()) continue;
    if (item.value().is_string())
      fields.emplace_back(item.key(), item.value().get<std::string>());
    else if (item.value().is_number())
      fields.emplace_back(item.key(), item.value().dump());
  }
  return fields;
}

namespace {

// Returns the formats whose keys the row has, with these keys.
std::vector<std::pair<Format, std::string>> fitting_formats(const Row& row) {
  std::vector<std::pair<Format, std::string>> fits;
  if (row.has("messages")) fits.emplace_back(Format::kMessages, "messages");
  if (row.has("prompt") && row.has("completion"))
    fits.emplace_back(Format::kPromptCompletion, quoted_keys({"prompt", "completion"}));
  if (row.has("text")) fits.emplace_back(Format::kText, "text");
  if (row.has("instruction") && row.has("output"))
    fits.emplace_back(Format::kAlpaca, quoted_keys({"instruction", "output"}));
  if (row.has("conversations")) fits.emplace_back(Format::kShareGpt, "conversations");
  if (row.has("input_ids")) fits.emplace_back(Format::kInputIds, "input_ids");
  return fits;
}

[[noreturn]] void refuse_several(const Row& row,
                                 const std::vector<std::pair<Format, std::string>>& fits) {
  std::string names;
  for (const auto& [format, why] : fits)
    names += (names.empty() ? "" : ", ") + std::string(enum_name(format)) + " (" + why + ")";
  bad_row("several formats fit: " + names +
          "; say which with `format:`. The row has: " + row.column_names());
}

// Rows for another purpose are told how to serve this one.
[[noreturn]] void refuse_unfit(const Row& row) {
  if (row.column("chosen") && row.column("rejected"))
    bad_row(
        "a preference row (chosen, rejected) has no single completion to train on; map one with "
        "`columns: {completion: chosen}`. The row has: " +
        row.column_names());
  if (row.has("prompt") && row.has("answer"))
    bad_row(
        "a row of prompt and answer serves generation; to train on it map `columns: {completion: "
        "answer}`. The row has: " +
        row.column_names());
  bad_row(
      "no format fits; expected messages | prompt + completion | text | instruction + output | "
      "conversations | input_ids, or a mapping with `columns:`. The row has: " +
      row.column_names());
}

}  // namespace

Format row_format(const Row& row, const Source& source, bool for_generation) {
  if (source.format != Format::kAuto) return source.format;
  const auto fits = fitting_formats(row);
  if (fits.empty() && row.has("prompt") && for_generation) return Format::kPromptCompletion;
  if (fits.size() == 1) return fits.front().first;
  if (fits.size() > 1) refuse_several(row, fits);
  refuse_unfit(row);
}

}  // namespace retort::data::detail

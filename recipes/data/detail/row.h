// One JSON line with its columns renamed: what every format reads from.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "recipes/data/options.h"

namespace retort::data::detail {

using Json = nlohmann::ordered_json;

// Errors are kInvalidArgument without the row's origin; make_sample and make_prompt add it.
[[noreturn]] void bad_row(const std::string& what);
// make(); an Error of it names `origin`, the row's file and line.
template <class Make>
auto at_origin(const std::string& origin, Make&& make) {
  try {
    return make();
  } catch (const Error& error) {
    throw Error(error.code(), origin + ": " + error.message(), error.origin(), error.context());
  }
}

std::string a_type(const Json& value);  // "a string", "an array", "null", ...

class Row {
 public:
  // Malformed JSON says at which column of the line; anything but an object is refused.
  Row(std::string_view line, const Source& source);

  // The value of a canonical key, which `columns` of the source may say stands under another name:
  // with {prompt: question}, find("prompt") is the file's "question", and find("question") nothing.
  // A dotted name (reward_model.ground_truth) is of what stands inside a column, where the row has
  // no column of the whole name. nullptr if the row lacks it or it is null.
  const Json* find(std::string_view key) const;
  bool has(std::string_view key) const { return find(key) != nullptr; }
  const Json& require(std::string_view key) const;
  const std::string& text(std::string_view key) const;    // required string
  std::string optional_text(std::string_view key) const;  // "" if absent
  std::string column_names() const;                       // "a, b, c", as in the file

  // String and number columns that none of `used` (canonical keys) refers to, under their names in
  // the file.
  std::vector<std::pair<std::string, std::string>> other_fields(
      std::vector<std::string_view> used) const;
  // All columns, under their names in the file.
  const Json& columns() const { return object_; }
  // The file's own column, or what a dotted name leads to, whatever `columns` says; nullptr if
  // absent or null.
  const Json* column(std::string_view name) const;

 private:
  std::string_view column_of(std::string_view key) const;  // "" if the key has none
  const Source& source_;
  Json object_;
};

// The format of the row: the source's, or by its keys; exactly one format must fit.
// `for_generation`: rows that hold only a prompt (and an answer) fit prompt_completion.
Format row_format(const Row& row, const Source& source, bool for_generation);

}  // namespace retort::data::detail

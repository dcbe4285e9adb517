#include "recipes/data/options.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string_view>

#include "recipes/data/detail/keys.h"

namespace retort::data {
namespace {

std::vector<std::string_view> mappable_keys() {
  std::vector<std::string_view> keys(detail::kKeys.begin(), detail::kKeys.end());
  keys.push_back(detail::kLabelKey);
  return keys;
}

void validate_source(const Source& source, const std::string& field) {
  const auto fail = [&](const std::string& what) -> void {
    throw Error(ErrorCode::kInvalidArgument, field + what);
  };
  if (source.path.empty()) fail(".path is empty; expected a JSONL file");
  if (!std::isfinite(source.weight) || source.weight <= 0)
    fail(".weight is " + std::to_string(source.weight) + "; expected a finite number above 0");

  const bool plain = source.format == Format::kText || source.format == Format::kInputIds;
  if (source.remove_none_values && plain)
    fail(".remove_none_values has no effect with format: " + std::string(enum_name(source.format)) +
         ", whose rows hold no structs; remove it");

  const std::vector<std::string_view> keys = mappable_keys();
  for (const auto& [key, column] : source.columns) {
    if (column.empty())
      fail(".columns." + key + " is empty; expected the name of a column of the file");
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    const std::string nearest = nearest_name(key, keys);
    std::string known;
    for (const std::string_view name : keys)
      known += (known.empty() ? "" : ", ") + std::string(name);
    fail(".columns." + key +
         " is not a key of any format (left: canonical key, right: column of the file); known: " +
         known + (nearest.empty() ? "" : "; did you mean '" + nearest + "'?"));
  }
}

// True for a day that there is, written in digits like "2026-11-23".
bool is_day(const std::string& text) {
  int year = 0;
  unsigned month = 0;
  unsigned day = 0;
  int read = 0;
  const int found = std::sscanf(text.c_str(), "%4d-%2u-%2u%n", &year, &month, &day, &read);
  if (found != 3 || text.size() != 10 || read != 10) return false;
  if (text.find_first_not_of("0123456789-") != std::string::npos) return false;
  return std::chrono::year_month_day(std::chrono::year(year), std::chrono::month(month),
                                     std::chrono::day(day))
      .ok();
}

void validate_template_kwargs(const JsonBlock& kwargs) {
  const nlohmann::json values = nlohmann::json::parse(kwargs.json);
  for (const auto& [name, value] : values.items())
    if (name == "messages" || name == "add_generation_prompt" || name == "tools")
      throw Error(ErrorCode::kInvalidArgument,
                  "data.chat_template_kwargs." + name +
                      (name == "tools" ? " has no place for all rows; give each row of messages a "
                                         "column `tools`"
                                       : " is what the program itself gives the template"));
}

}  // namespace

void DataOptions::validate() const {
  if (max_length < 2)
    throw Error(ErrorCode::kInvalidArgument,
                "data.max_length is " + std::to_string(max_length) +
                    "; expected at least 2 (a token and the one it predicts)");

  // wrapped spreads rows over packs, so it needs packs and cuts no row off.
  if (packing_strategy == PackingStrategy::kWrapped && !packing)
    throw Error(
        ErrorCode::kInvalidArgument,
        "data.packing_strategy: wrapped cuts rows into packs, which packing: false does not "
        "form; remove one of the two");
  if (packing_strategy == PackingStrategy::kWrapped && truncation_mode == TruncationMode::kKeepEnd)
    throw Error(
        ErrorCode::kInvalidArgument,
        "data.truncation_mode: keep_end has no effect with packing_strategy: wrapped, which "
        "cuts nothing off; remove one of the two");

  // A key that is written, but says nothing that can be used, is refused rather than taken for
  // null.
  if (template_date && !is_day(*template_date))
    throw Error(ErrorCode::kInvalidArgument,
                "data.template_date is '" + *template_date + "'; expected a day like 2026-11-23");
  if (tokenized_cache && tokenized_cache->empty())
    throw Error(ErrorCode::kInvalidArgument,
                "data.tokenized_cache is empty; write a folder, or null");
  if (chat_template && chat_template->empty())
    throw Error(ErrorCode::kInvalidArgument,
                "data.chat_template is empty; write a file or the name of a template, or null");
  validate_template_kwargs(chat_template_kwargs);

  for (size_t i = 0; i < train.size(); ++i)
    validate_source(train[i], "data.train[" + std::to_string(i) + "]");
  for (size_t i = 0; i < eval.size(); ++i)
    validate_source(eval[i], "data.eval[" + std::to_string(i) + "]");
}

}  // namespace retort::data

#include "recipes/data/options.h"

#include <algorithm>
#include <cmath>
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

}  // namespace

void DataOptions::validate() const {
  if (max_length < 2)
    throw Error(ErrorCode::kInvalidArgument,
                "data.max_length is " + std::to_string(max_length) +
                    "; expected at least 2 (a token and the one it predicts)");
  for (size_t i = 0; i < train.size(); ++i)
    validate_source(train[i], "data.train[" + std::to_string(i) + "]");
  for (size_t i = 0; i < eval.size(); ++i)
    validate_source(eval[i], "data.eval[" + std::to_string(i) + "]");
}

}  // namespace retort::data

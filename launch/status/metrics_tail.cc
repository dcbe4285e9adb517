#include "launch/status/metrics_tail.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

namespace retort::launch {

MetricsTail::MetricsTail(std::filesystem::path path) : path_(std::move(path)) {
  std::error_code missing;
  const auto size = std::filesystem::file_size(path_, missing);
  offset_ = missing ? 0 : static_cast<int64_t>(size);
}

std::vector<LoggedStep> MetricsTail::poll() {
  std::vector<LoggedStep> rows;
  std::error_code missing;
  const auto size = std::filesystem::file_size(path_, missing);
  if (missing || static_cast<int64_t>(size) <= offset_) return rows;
  std::ifstream file(path_, std::ios::binary);
  file.seekg(offset_);
  for (std::string line; std::getline(file, line);) {
    if (file.eof()) break;  // half a row: next time
    offset_ += static_cast<int64_t>(line.size()) + 1;
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) continue;
    LoggedStep row{.step = json["step"].get<int64_t>(), .values = {}};
    for (const auto& [key, value] : json.items()) {
      if (value.is_number()) row.values[key] = value.get<double>();
      if (value.is_null()) row.values[key] = std::nan("");
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace retort::launch

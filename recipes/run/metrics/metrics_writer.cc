#include "recipes/run/metrics/metrics_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/json_text.h"

namespace retort::recipes {
namespace fs = std::filesystem;
namespace {

fs::path create_folder(const fs::path& folder) {
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed)
    throw Error(ErrorCode::kUnavailable,
                "cannot create folder " + folder.string() + ": " + failed.message());
  return folder;
}

std::optional<int64_t> step_in_line(std::string_view line) {
  const auto row = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!row.is_object()) return std::nullopt;
  const auto step = row.find("step");
  if (step == row.end() || !step->is_number_integer()) return std::nullopt;
  return step->get<int64_t>();
}

}  // namespace

MetricsWriter::MetricsWriter(const fs::path& output_dir)
    : rows_(create_folder(output_dir) / "metrics.jsonl"), events_(output_dir / "tensorboard") {}

void MetricsWriter::write(const MetricsRow& row) {
  JsonLine line;
  line.add("step", row.step);
  std::vector<std::pair<std::string, double>> scalars;
  for (const auto& [name, value] : row.values) {
    std::visit([&](auto number) { line.add(name, number); }, value);
    scalars.emplace_back(
        name, std::visit([](auto number) { return static_cast<double>(number); }, value));
  }
  rows_.append(line.str() + "\n");
  events_.write(row.step, scalars);
}

void MetricsWriter::flush() {
  rows_.flush();
  events_.flush();
}

int64_t MetricsWriter::num_waiting_rows() const {
  return std::max(rows_.num_waiting(), events_.num_waiting());
}

namespace {

// The lines of metrics.jsonl up to a step, and those after it.
struct CutRows {
  std::string kept, moved;
};

// A last line that was cut off by a crash is moved; any other that is no row is kCorrupt.
CutRows cut_rows(const fs::path& path, int64_t step) {
  const std::string content = read_file(path);
  CutRows cut;
  int64_t number = 0;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = content.find('\n', begin);
    const bool whole = end != std::string::npos;
    const std::string_view line =
        std::string_view(content).substr(begin, whole ? end - begin : std::string::npos);
    ++number;

    const std::optional<int64_t> at = step_in_line(line);
    if (!at && whole && end + 1 < content.size())
      throw Error(ErrorCode::kCorrupt,
                  path.string() + ":" + std::to_string(number) +
                      ": not a JSON object with a step; remove this line to continue the run");
    // A resumed run does the steps after `step` again, and writes their rows anew.
    const bool keep = at && whole && *at <= step;
    (keep ? cut.kept : cut.moved).append(line).append("\n");
    begin += line.size() + 1;
  }
  return cut;
}

}  // namespace

void cut_back_metrics(const fs::path& output_dir, int64_t step) {
  const fs::path path = output_dir / "metrics.jsonl";
  const CutRows cut = fs::exists(path) ? cut_rows(path, step) : CutRows{};
  if (!cut.moved.empty()) {
    // The old rows are safe before the new file replaces them; a crash between the two repeats rows
    // in the old file only.
    const fs::path old = path.string() + ".1";
    write_file_atomically(old, (fs::exists(old) ? read_file(old) : std::string()) + cut.moved);
    write_file_atomically(path, cut.kept);
  }
  cut_back_events(output_dir / "tensorboard", step);
}

}  // namespace retort::recipes

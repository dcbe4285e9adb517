// Rows a second of files of all kinds, beside JSONL: the first opening (with a cache that is
// empty), the next one, reading each row as text, tokenising it, and reading its tokens from
// data.tokenized_cache. Memory is the process's own, maps of files left out.
//   data_bench MODEL_FOLDER FILE...
// MODEL_FOLDER has a tokenizer and, for messages, a chat template. Files may hold the same rows:
//   python3 -c 'import pyarrow.json as j, pyarrow.parquet as p
//   p.write_table(j.read_json("a.jsonl"), "a.parquet")'
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "recipes/data/dataset.h"
#include "recipes/data/jsonl.h"

namespace {

namespace fs = std::filesystem;
using namespace retort;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// "RssAnon" of /proc, in MiB: what is not a map of a file.
double anonymous_mib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("RssAnon:")) return std::stod(line.substr(8)) / 1024;
  return 0;
}

// Of all rows, by their index in order.
template <class Read>
double rows_per_second(int64_t rows, Read&& read) {
  const auto begin = Clock::now();
  for (int64_t row = 0; row < rows; ++row)
    read(row);
  return static_cast<double>(rows) / seconds_since(begin);
}

void measure(const fs::path& model, const fs::path& file, const fs::path& work) {
  const fs::path cache = work / "cache";
  auto begin = Clock::now();
  const data::JsonlFile rows(file, cache);
  const double first = seconds_since(begin);
  begin = Clock::now();
  const data::JsonlFile again(file, cache);
  const double next = seconds_since(begin);
  const double mib = anonymous_mib();
  size_t bytes = 0;
  const double text =
      rows_per_second(rows.size(), [&](int64_t i) { bytes += rows.line(i).size(); });

  // Tokens: made, kept, read.
  const auto open = [&](bool kept) {
    data::DataOptions options;
    if (kept) options.tokenized_cache = (work / "tokens").string();
    return data::Dataset({{.path = file.string()}}, options, models::Tokenizer::load(model),
                         models::ChatTemplate::load(model), cache);
  };
  const data::Dataset made = open(false);
  size_t tokens = 0;
  const auto take = [&](const data::Dataset& set) {
    return rows_per_second(set.size(), [&](int64_t i) { tokens += set.get(i)->input_ids.size(); });
  };
  const double tokenised = take(made);
  begin = Clock::now();
  const data::Dataset kept = open(true);
  const double keeping = seconds_since(begin);
  const double read = take(kept);

  std::printf(
      "%s: %lld rows, %.0f MB of text; opened in %.2f s, again in %.2f s, %.0f MiB; rows/s: text "
      "%.0f, tokenised %.0f, kept tokens %.0f (made in %.2f s); %.1f tokens a row\n",
      file.filename().c_str(), static_cast<long long>(rows.size()),
      static_cast<double>(bytes) / 1e6, first, next, mib, text, tokenised, read, keeping,
      static_cast<double>(tokens) / 2 / static_cast<double>(rows.size()));
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3) {
    std::fprintf(stderr, "data_bench MODEL_FOLDER FILE...\n");
    return 2;
  }
  for (int i = 2; i < argc; ++i) {
    const fs::path work = fs::temp_directory_path() / "retort-data-bench";
    fs::remove_all(work);
    measure(argv[1], argv[i], work);
    fs::remove_all(work);
  }
  return 0;
} catch (const Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

// What it costs to compare a checkpoint with its checksums while it is loaded: seconds a GiB of
// loading a model without and with them, in turn, from the page cache, and of the checksum alone.
//   checkpoint_bench MODEL_FOLDER [THREADS]
// MODEL_FOLDER is copied to the system's folder for temporary files; some GiB say most:
//   retort model init --arch qwen3 --tokenizer DIR --hidden-size 2048 --output MODEL_FOLDER
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/placed_checksum.h"
#include "models/checkpoint.h"
#include "models/file_checksums.h"

namespace {

namespace fs = std::filesystem;
using namespace retort;

constexpr int kRounds = 7;

template <class Work>
double seconds_of(const Work& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void measure(const fs::path& model, const fs::path& checkpoint) {
  fs::remove_all(checkpoint);
  fs::create_directories(checkpoint.parent_path());
  fs::copy(model, checkpoint, fs::copy_options::recursive);
  fs::create_directories(checkpoint / "state");
  models::FileChecksums files;
  double bytes = 0;
  for (const auto& entry : fs::directory_iterator(checkpoint)) {
    if (entry.path().extension() != ".safetensors") continue;
    files.emplace(entry.path().filename().string(), models::checksum_of_file(entry.path()));
    bytes += static_cast<double>(entry.file_size());
  }
  const double gib = bytes / static_cast<double>(uint64_t{1} << 30);

  // In turn, so that whatever else the machine does meets both.
  std::vector<double> without, with, alone;
  uint64_t sum = 0;
  const auto load = [&] { models::load_decoder(checkpoint, at::kFloat); };
  for (int round = 0; round < kRounds; ++round) {
    replace_file(checkpoint / models::kCompleteFile, "complete\n");
    without.push_back(seconds_of(load) / gib);
    replace_file(checkpoint / models::kCompleteFile, models::write_checksums(files));
    with.push_back(seconds_of(load) / gib);
    alone.push_back(seconds_of([&] {
                      for (const auto& [name, saved] : files) {
                        const MappedFile file(checkpoint / name);
                        sum += placed_checksum64(file.bytes(), 0);
                      }
                    }) /
                    gib);
  }
  std::printf(
      "%.2f GiB, %d threads: loaded in %.3f s/GiB without checksums, %.3f with them (%+.1f %%); "
      "least %.3f and %.3f (%+.1f %%); checksum alone, one thread: %.3f s/GiB (%016llx)\n",
      gib, at::get_num_threads(), median(without), median(with),
      100 * (median(with) / median(without) - 1), *std::min_element(without.begin(), without.end()),
      *std::min_element(with.begin(), with.end()),
      100 * (*std::min_element(with.begin(), with.end()) /
                 *std::min_element(without.begin(), without.end()) -
             1),
      median(alone), static_cast<unsigned long long>(sum));
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "checkpoint_bench MODEL_FOLDER [THREADS]\n");
    return 2;
  }
  if (argc > 2) at::set_num_threads(std::atoi(argv[2]));
  const fs::path work = fs::temp_directory_path() / "retort-checkpoint-bench";
  measure(argv[1], work / "checkpoint-1");
  fs::remove_all(work);
  return 0;
} catch (const Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

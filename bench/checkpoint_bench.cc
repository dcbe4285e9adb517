// What it costs to compare a checkpoint with its checksums while it is loaded from the page cache:
// weights, and the state of an optimizer. In each round, in turn:
//   before    without checksums, as it was read before there were any: a map copied by LibTorch
//   without   as it is read now, of a checkpoint that has none
//   with      as it is read now, compared
// Seconds a GiB of the file, and what `with` takes more than the two: medians over the rounds. Wall
// time, and the time of all threads together, which other work on the machine changes less.
//   checkpoint_bench MODEL_FOLDER [THREADS [ROUNDS]]
// MODEL_FOLDER is copied to the system's folder for temporary files; some GiB say most:
//   retort model init --arch qwen3 --tokenizer DIR --hidden-size 2048 --output MODEL_FOLDER
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "models/checkpoint/checkpoint.h"
#include "models/safetensors/file_checksums.h"
#include "models/safetensors/safetensors.h"
#include "parallel/adamw.h"

namespace {

namespace fs = std::filesystem;
using namespace retort;

constexpr const char* kStateFile = "state/optimizer.safetensors";

struct Seconds {
  double wall = 0;
  double threads = 0;
};

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

Seconds time_of(const std::function<void()>& work) {
  const double wall = seconds_of(CLOCK_MONOTONIC);
  const double threads = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
  work();
  return {seconds_of(CLOCK_MONOTONIC) - wall, seconds_of(CLOCK_PROCESS_CPUTIME_ID) - threads};
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// A folder as a run saves it: the model, and an optimizer's state of its parameters in float32.
class Checkpoint {
 public:
  Checkpoint(const fs::path& model, fs::path folder) : folder_(std::move(folder)) {
    fs::remove_all(folder_);
    fs::create_directories(folder_.parent_path());
    fs::copy(model, folder_, fs::copy_options::recursive);
    fs::create_directories(folder_ / "state");
    const models::SafetensorsReader reader(folder_);
    std::vector<std::pair<std::string, at::Tensor>> state;
    for (const std::string& name : reader.names()) {
      parameters_.push_back({.name = name, .value = at::empty(reader.shape(name), at::kFloat)});
      state.emplace_back(name + ".exp_avg", at::full(reader.shape(name), 0.25));
      state.emplace_back(name + ".exp_avg_sq", at::full(reader.shape(name), 0.5));
    }
    models::write_safetensors(folder_ / kStateFile, state);

    for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
      if (entry.path().extension() != ".safetensors") continue;
      const std::string name = entry.path().lexically_relative(folder_).string();
      files_.emplace(name, models::checksum_of_file(entry.path()));
      (name == kStateFile ? state_gib_ : weights_gib_) +=
          static_cast<double>(entry.file_size()) / static_cast<double>(uint64_t{1} << 30);
    }
  }
  ~Checkpoint() { fs::remove_all(folder_); }
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  const fs::path& folder() const { return folder_; }
  std::vector<parallel::NamedParameter> parameters() const { return parameters_; }
  double weights_gib() const { return weights_gib_; }
  double state_gib() const { return state_gib_; }
  void with_checksums(bool with) const {
    replace_file(folder_ / models::kCompleteFile,
                 with ? models::write_checksums(files_) : "complete\n");
  }

 private:
  const fs::path folder_;
  std::vector<parallel::NamedParameter> parameters_;
  models::FileChecksums files_;
  double weights_gib_ = 0, state_gib_ = 0;
};

// As load_decoder() did before there were checksums, but for the decoder.
void load_weights_before(const fs::path& folder, at::ScalarType dtype) {
  const models::SafetensorsReader reader(folder);
  std::vector<at::Tensor> tensors;
  for (const std::string& name : reader.names()) {
    tensors.push_back(at::empty(reader.shape(name), dtype));
    tensors.back().copy_(reader.get(name));
  }
}

void load_state_before(const fs::path& file, const parallel::AdamW& optimizer) {
  const models::SafetensorsReader reader(file);
  const std::vector<parallel::TensorPiece> pieces = optimizer.state();
  std::vector<at::Tensor> given;
  for (const parallel::TensorPiece& piece : pieces)
    given.push_back(reader.get(piece.name).view({-1}));
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < pieces.size(); ++i)
    at::Tensor(pieces[i].values).copy_(given[i]);
}

void load_state_now(const fs::path& file, parallel::AdamW& optimizer) {
  const models::SafetensorsReader reader(file);
  optimizer.load_state(1, [&](parallel::TensorPiece& piece) { reader.read_piece(piece); });
}

void compare(const char* what, const Checkpoint& checkpoint, double gib, int rounds,
             const std::function<void()>& before, const std::function<void()>& now) {
  std::array<std::vector<double>, 3> wall, threads;
  std::array<std::vector<double>, 2> wall_more, threads_more;
  // In turn, so that whatever else the machine does meets all; the first round fills the caches.
  for (int round = -1; round < rounds; ++round) {
    std::array<Seconds, 3> taken;
    for (size_t i = 0; i < taken.size(); ++i) {
      checkpoint.with_checksums(i == 2);
      taken[i] = time_of(i == 0 ? before : now);
    }
    if (round < 0) continue;
    for (size_t i = 0; i < taken.size(); ++i) {
      wall[i].push_back(taken[i].wall / gib);
      threads[i].push_back(taken[i].threads / gib);
    }
    for (size_t i = 0; i < 2; ++i) {
      wall_more[i].push_back(100 * (taken[2].wall / taken[i].wall - 1));
      threads_more[i].push_back(100 * (taken[2].threads / taken[i].threads - 1));
    }
  }

  std::printf("%s, %.2f GiB, %d threads\n", what, gib, at::get_num_threads());
  std::printf("           before  without     with   with: %% more than before, than without\n");
  const auto row = [](const char* name, const auto& seconds, const auto& more) {
    std::printf("%-8s %8.3f %8.3f %8.3f   %+.1f %%  %+.1f %%\n", name, median(seconds[0]),
                median(seconds[1]), median(seconds[2]), median(more[0]), median(more[1]));
  };
  row("wall", wall, wall_more);
  row("threads", threads, threads_more);
}

void measure(const Checkpoint& checkpoint, int rounds) {
  const fs::path& folder = checkpoint.folder();
  for (const auto& [what, dtype] :
       {std::pair("weights into float32", at::kFloat), {"weights into bfloat16", at::kBFloat16}}) {
    compare(
        what, checkpoint, checkpoint.weights_gib(), rounds,
        [&, dtype = dtype] { load_weights_before(folder, dtype); },
        [&, dtype = dtype] { models::load_decoder(folder, dtype); });
  }

  parallel::AdamW optimizer(checkpoint.parameters(), {});
  compare(
      "an optimizer's state", checkpoint, checkpoint.state_gib(), rounds,
      [&] { load_state_before(folder / kStateFile, optimizer); },
      [&] { load_state_now(folder / kStateFile, optimizer); });
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2 || argc > 4) {
    std::fprintf(stderr, "checkpoint_bench MODEL_FOLDER [THREADS [ROUNDS]]\n");
    return 2;
  }
  if (argc > 2) at::set_num_threads(std::atoi(argv[2]));
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 9;
  const fs::path work = fs::temp_directory_path() / "retort-checkpoint-bench";
  measure(Checkpoint(argv[1], work / "checkpoint-1"), rounds);
  fs::remove_all(work);
  return 0;
} catch (const Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

// checkpoint-N/: the model as a Hugging Face folder, and state/ to continue the run exactly.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "parallel/world.h"
#include "recipes/data/batches.h"
#include "roles/trainer.h"

namespace retort::recipes {

// state/loop.json
struct LoopState {
  int64_t step = 0;          // optimizer steps done
  data::BatchCursor cursor;  // data consumed
  int64_t num_tokens = 0;    // tokens seen so far, all ranks
  uint64_t seed = 0;
  int64_t dp = 1, threads = 1;  // with others the numbers agree but not bit for bit
  std::string data_fingerprint;
};

// Threads: compute. A checkpoint appears under its name only when complete and synced.
class CheckpointStore {
 public:
  // `tokenizer_source`: the folder whose tokenizer files are copied into every checkpoint.
  CheckpointStore(std::filesystem::path run_folder, std::filesystem::path tokenizer_source, int64_t save_total_limit);

  // Rank 0 writes, the others wait; a failure on rank 0 raises on all. One vote on the world. Older checkpoints over the limit are
  // removed afterwards, never the newest complete one.
  std::filesystem::path save(const roles::Trainer& trainer, parallel::World& world, const LoopState& state) const;
  const std::filesystem::path& run_folder() const { return run_folder_; }

 private:
  std::filesystem::path run_folder_, tokenizer_source_;
  int64_t save_total_limit_;
};

LoopState read_loop_state(const std::filesystem::path& checkpoint);

}  // namespace retort::recipes

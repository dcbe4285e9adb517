// state/loop.json of a checkpoint: how far a run had come when it was saved.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "parallel/layout.h"
#include "recipes/data/cursor.h"
#include "recipes/data/row_identity.h"
#include "recipes/run/checkpoints/best_model.h"

namespace retort::recipes {

struct LoopState {
  int64_t step = 0;        // optimizer steps done
  data::Cursor cursor;     // data consumed
  int64_t num_tokens = 0;  // tokens seen so far, all ranks
  // steps that changed nothing (train.skip_nonfinite_steps, and with them those of loss scales that
  // were too large): of all that were done; and the last ones in a row, without the latter
  int64_t skipped_steps = 0, skipped_in_a_row = 0;
  BestModel best;  // of train.metric_for_best_model
  uint64_t seed = 0;
  // of the student, `threads` as resolved; with another the numbers agree but not bit for bit
  parallel::Layout layout;
  std::string data_fingerprint;
  // the same in its parts; null in checkpoints of before they were kept
  std::optional<data::RowIdentity> rows;
  // what chat templates print, as 2026-11-23; "" in checkpoints of before it was kept
  std::string template_day;
  // of the adapter that is kept as the reference (models::adapter_fingerprint); "": none is kept.
  // Null in checkpoints of before one was.
  std::optional<std::string> first_adapter;
};

// The file's text.
std::string write_loop_state(const LoopState& state);
// Reads the state in a checkpoint's folder, also one that an earlier version wrote. kMismatch
// naming the file for a format of a later version, kCorrupt for a file that is not one.
LoopState read_loop_state(const std::filesystem::path& checkpoint);
// "tp 2, pp 1, dp 2, 4 threads": what the bits of a run depend on. Two layouts with the same text
// give the same bits.
std::string layout_text(const parallel::Layout& layout);

}  // namespace retort::recipes

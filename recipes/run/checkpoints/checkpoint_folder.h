// The checkpoints of a run: folders checkpoint-<step> in its output folder. One counts only once it
// is complete.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <vector>

#include "models/safetensors/file_checksums.h"

namespace retort::recipes {

struct CheckpointEntry {
  int64_t step = 0;
  std::filesystem::path path;
  bool operator==(const CheckpointEntry&) const = default;
};

std::filesystem::path checkpoint_path(const std::filesystem::path& output_dir, int64_t step);

// Writes and syncs the marker state/COMPLETE of a checkpoint: the last thing done to it, after
// every rank's shards are there. It holds the checksums of `files`, which the ranks have written,
// and of all others, which are read here.
void mark_complete(const std::filesystem::path& checkpoint, models::FileChecksums files = {});

// Complete checkpoints in increasing order of step: those with the marker, and a config.json or
// that of an adapter.
std::vector<CheckpointEntry> list_checkpoints(const std::filesystem::path& output_dir);
// Whether there is a complete one of this step.
bool is_checkpoint(const std::filesystem::path& output_dir, int64_t step);
std::optional<CheckpointEntry> latest_checkpoint(const std::filesystem::path& output_dir);
// The newest complete one of an earlier step in the same folder.
std::optional<CheckpointEntry> checkpoint_before(const std::filesystem::path& checkpoint);

// Renames checkpoint-<step> to checkpoint-<step>.damaged (.damaged-2 and so on where there is one),
// which counts no more. Returns where it is. Errors: as rename_file().
std::filesystem::path set_aside(const std::filesystem::path& output_dir, int64_t step);
// Those that were set aside.
std::vector<CheckpointEntry> list_set_aside(const std::filesystem::path& output_dir);

// Removes all but the newest `save_total_limit` complete checkpoints (0: keeps all), and what
// crashes left half done of older steps. Those that were set aside count last: they go when as many
// others are complete, and one of a later step is among these. Never removes the newest, nor those
// of the steps `kept`, which do not count, nor folders under names of somebody else's. The one
// process of a run that saves calls it. Errors: kUnavailable naming what cannot be removed, after
// all others were; the next call tries it again.
void prune_checkpoints(const std::filesystem::path& output_dir, int64_t save_total_limit,
                       const std::set<int64_t>& kept = {});

// Removes what is no checkpoint to go on from: all that crashes left under temporary names, and
// with `damaged` what was set aside. Returns what it removed; what cannot be removed is a warning.
// Nobody saves meanwhile.
std::vector<std::filesystem::path> drop_useless(const std::filesystem::path& output_dir,
                                                bool damaged);
// Removes the oldest complete checkpoint that can be removed and is not of a step of `kept`, if a
// newer one stays, and returns where it was; nullopt: there is none to spare. As prune_checkpoints.
std::optional<std::filesystem::path> drop_oldest_checkpoint(const std::filesystem::path& output_dir,
                                                            const std::set<int64_t>& kept = {});

// Points <output_dir>/final at checkpoint-<step>, replacing an older link in one step, and syncs
// it; link_best points <output_dir>/best.
void link_final(const std::filesystem::path& output_dir, int64_t step);
void link_best(const std::filesystem::path& output_dir, int64_t step);

}  // namespace retort::recipes

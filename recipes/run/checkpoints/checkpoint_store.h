// checkpoint-N/: the model as a Hugging Face folder, or what is trained beside it as PEFT's, and
// state/ to continue the run exactly.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "parallel/world.h"
#include "recipes/run/checkpoints/loop_state.h"
#include "roles/trainer/trainer.h"

namespace retort::recipes {

// The checkpoints of a run. All ranks write: rank 0 makes the files under a temporary name, every
// rank writes the slices that it counts, and when all have done so and synced, rank 0 renames the
// folder. So it appears under its name only when complete, whatever fails, and the checkpoints
// before it stay as they are. The files do not depend on the layout. Ranks that see the run's
// folder through several page caches, as hosts do, write each file in turns (base/write_turn.h).
//
// The checkpoint of the best model (LoopState::best) is not removed for newer ones, and the link
// `best` points at it.
// Threads: compute.
// Collectives: on the world, in save() and finish(): every rank must call.
// Slow disk: ranks whose files are ready wait for the others for as long as these write, whatever
//   the timeout of a collective, also with `async`.
// Full disk: it shows before anything is written. What crashes left is removed, with
//   save_total_limit also what was set aside as damaged, and the save is tried again; then the
//   oldest checkpoint, unless it is the only one, and it is tried once more.
// Checksums of all files stand in the checkpoint (models/safetensors/file_checksums.h): of what a
//   rank writes they are of its memory, so that bytes which are lost on their way to the disk show,
//   too.
// Errors: the same on all ranks: kResourceExhausted when the disk is full and the like, naming the
//   checkpoint; the temporary folder is removed. is_save_error() tells them from a group's. What
//   goes wrong once the checkpoint is complete (a link, an old one that cannot be removed, a hook)
//   is a warning, and tried again after the next one.
class CheckpointStore {
 public:
  struct Options {
    int64_t save_total_limit = 0;  // complete checkpoints that are kept; 0: all
    // save() copies what this rank writes and returns; a thread of its own writes the copy, without
    // LibTorch and collectives. Memory of the copy:
    // - an fp32 parameter: 12 bytes an element (itself and Adam's two moments)
    // - a parameter of 2 bytes: 14 (itself, its fp32 master and the moments)
    // - a dp rank but the first writes nothing, unless the optimizer is distributed
    bool async = false;
    // what the tokenizer of every checkpoint has as its chat template, whatever the model has;
    // none: the model's own
    std::optional<std::string> chat_template;
  };
  // What rank 0 tells and asks around a checkpoint that is complete, on the compute thread.
  struct Hooks {
    std::function<void(const std::filesystem::path& checkpoint)> on_complete;
    // checkpoints that somebody reads and that must stay
    std::function<std::vector<std::filesystem::path>()> in_use;
    // besides the log
    std::function<void(int64_t step, const std::string& what)> warn;
  };
  // `model`: the student's folder, whose tokenizer files are copied into every checkpoint, and
  // which that of an adapter names as its base.
  CheckpointStore(std::filesystem::path run_folder, std::filesystem::path model, Options options,
                  Hooks hooks);
  CheckpointStore(std::filesystem::path run_folder, std::filesystem::path model, Options options)
      : CheckpointStore(std::move(run_folder), std::move(model), options, Hooks()) {}
  ~CheckpointStore();  // a checkpoint that is not finished is given up
  CheckpointStore(const CheckpointStore&) = delete;

  // Waits for the checkpoint before this one, and begins this one; without `async` it completes it
  // too. Returns where it is, or will be.
  std::filesystem::path save(const roles::Trainer& trainer, parallel::World& world,
                             const LoopState& state);
  // Waits until the checkpoint that save() began is complete; raises what went wrong with it. Older
  // checkpoints over the limit are removed afterwards, never the newest complete one. Where nothing
  // has been begun it returns at once, without a collective.
  void finish(parallel::World& world);
  // Whether this rank is still writing: finish() would wait. No collective.
  bool busy() const;
  const std::filesystem::path& run_folder() const { return run_folder_; }

 private:
  struct Pending;
  std::unique_ptr<Pending> begin(const roles::Trainer& trainer, parallel::World& world,
                                 const LoopState& state) const;
  void see_complete(const Pending& pending) const;
  enum class Room : int64_t { kNone, kOfUseless, kOfOldest };
  Room make_room(parallel::World& world, const Error& why, int64_t best_step,
                 bool may_drop_oldest) const;
  std::set<int64_t> kept_steps(int64_t best_step) const;

  std::filesystem::path run_folder_, model_;
  Options options_;
  Hooks hooks_;
  std::unique_ptr<Pending> pending_;
};

// Whether save() or finish() threw this because a checkpoint cannot be written, and not because the
// ranks have lost each other.
bool is_save_error(const Error& error);

}  // namespace retort::recipes

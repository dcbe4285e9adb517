#include "recipes/run/checkpoints/checkpoint_store.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <future>
#include <optional>
#include <span>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/write_turn.h"
#include "models/checkpoint/adapter.h"
#include "models/safetensors/writer.h"
#include "models/text/chat_template.h"
#include "parallel/vote.h"
#include "recipes/run/checkpoints/checkpoint_folder.h"

namespace retort::recipes {
namespace fs = std::filesystem;
namespace {

// Runs fn, then votes: the first failing rank's error, as one about the checkpoint, is thrown on
// all. What the file system refuses gets the code that says what to do about it.
template <class Fn>
void run_phase(parallel::Group& all, const std::string& complaint, Fn&& fn) {
  const auto files = [&] {
    try {
      fn();
    } catch (const fs::filesystem_error& e) {
      const int error = e.code().value();
      const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
      throw Error(full ? ErrorCode::kResourceExhausted : ErrorCode::kUnavailable, e.what());
    }
  };
  parallel::run_on_all(all, files, complaint);
}

// How long a rank waits for its own work before it asks the others.
constexpr std::chrono::milliseconds kBusyPause{500};

// Waits until no rank works any more. Ranks may write for very different times, in turns the sum of
// all others', so that none waits for them in one collective, which has its timeout.
// Collectives: an all-reduce of 8 bytes at least every kBusyPause.
template <class T>
void wait_for_all(parallel::Group& all, const std::future<T>& work) {
  if (all.size() == 1) return;
  for (bool busy = true; busy;) {
    const bool mine = work.wait_for(kBusyPause) == std::future_status::timeout;
    busy = all.all_reduce(int64_t{mine}, parallel::ReduceOp::kMax) > 0;
  }
}

// The work runs on a thread of its own if there is one to be had, else when its result is asked
// for. It makes no collectives.
template <class Work>
auto start_work(bool on_thread, Work&& work) {
  if (on_thread) {
    try {
      return std::async(std::launch::async, work);
    } catch (const std::system_error& e) {
      RETORT_LOG(kWarning) << "no thread for a checkpoint, it is written now: " << e.what();
    }
  }
  return std::async(std::launch::deferred, work);
}

// This is run_phase() for work on files that may take longer than a collective: fn runs on a thread
// of its own while this one tells the others that it lives.
template <class Fn>
void run_long_phase(parallel::Group& all, const std::string& complaint, Fn&& fn) {
  std::future<void> work = start_work(all.size() > 1, [&fn] { fn(); });
  wait_for_all(all, work);
  run_phase(all, complaint, [&] { work.get(); });
}

// This is what one rank has written.
struct WrittenParts {
  uint64_t elements = 0;
  std::vector<models::FileChecksum> checksums;  // of every file of every part
};

WrittenParts write_parts(const fs::path& folder, const std::vector<models::CheckpointPart>& parts,
                         bool in_turns) {
  WrittenParts written;
  for (const models::CheckpointPart& part : parts) {
    models::SafetensorsSliceWriter writer(folder / part.folder, part.files, {.in_turns = in_turns});
    writer.write(part.pieces);
    writer.finish();
    written.elements += writer.num_elements();
    for (models::FileChecksum& checksum : writer.checksums())
      written.checksums.push_back(std::move(checksum));
  }
  return written;
}

// Returns the checksums of the files that the ranks have written together. What each rank counted
// of a block adds up. One all-reduce on the world, of 8 bytes for each MiB.
models::FileChecksums sum_checksums(parallel::World& world,
                                    const std::vector<models::CheckpointPart>& parts,
                                    const std::vector<models::FileChecksum>& mine) {
  int64_t num_blocks = 0;
  for (const models::FileChecksum& checksum : mine)
    num_blocks += std::ssize(checksum.blocks);
  at::Tensor sums = at::empty({num_blocks}, at::kLong);
  auto* next = reinterpret_cast<uint64_t*>(sums.mutable_data_ptr<int64_t>());
  for (const models::FileChecksum& checksum : mine)
    next = std::copy(checksum.blocks.begin(), checksum.blocks.end(), next);
  world.all().all_reduce(sums);

  // The sums are taken apart into files again, in the order of `mine`. The head of each is added
  // here, because no rank has counted it.
  models::FileChecksums files;
  const auto* sum = reinterpret_cast<const uint64_t*>(sums.const_data_ptr<int64_t>());
  for (const models::CheckpointPart& part : parts) {
    for (const auto& [name, layout] : part.files.files) {
      models::FileChecksum checksum(layout.file_bytes());
      std::copy_n(sum, checksum.blocks.size(), checksum.blocks.begin());
      sum += checksum.blocks.size();
      checksum.add(std::as_bytes(std::span(layout.head())), 0);
      files.emplace((part.folder / name).generic_string(), std::move(checksum));
    }
  }
  return files;
}

// This rank's share of the model and of the optimizer's state.
std::vector<models::CheckpointPart> parts_of(const roles::Trainer& trainer,
                                             parallel::World& world) {
  std::vector<models::CheckpointPart> parts;
  parts.push_back(models::trained_part(trainer.decoder(), trainer.decoder().dtype()));
  // All replicas hold the same weights: the first one alone writes them.
  if (world.coordinate().dp != 0) parts.back().pieces.clear();
  parts.push_back(trainer.state_part());
  parts.back().folder = "state";
  return parts;
}

// Copies the pieces as they will stand in the files, because training changes the originals while
// they are written.
void copy_pieces(models::CheckpointPart& part) {
  for (parallel::TensorPiece& piece : part.pieces)
    piece = models::snapshot(piece, part.files.at(piece.name).dtype);
}

// Returns, the same on all ranks, whether one of them sees `folder` through another page cache than
// the first one does.
bool have_several_caches(parallel::Group& all, const fs::path& folder,
                         const std::string& complaint) {
  if (all.size() == 1) return false;
  std::string mine;
  run_phase(all, complaint, [&] { mine = page_cache_of(folder); });
  const std::string first = all.broadcast(mine, 0);
  return all.all_reduce(int64_t{mine != first}) > 0;
}

}  // namespace

struct CheckpointStore::Pending {
  fs::path folder;  // its name once complete
  int64_t step = 0;
  int64_t best_step = 0;                // of the best model so far; 0: none
  std::unique_ptr<AtomicFolder> files;  // rank 0
  fs::path temporary;                   // where it is now
  std::vector<models::CheckpointPart> parts;
  std::future<WrittenParts> written;  // destroyed first: waits for the thread

  std::string complaint() const { return "checkpoint " + folder.string() + " was not saved: "; }
};

CheckpointStore::CheckpointStore(fs::path run_folder, fs::path model, Options options, Hooks hooks)
    : run_folder_(std::move(run_folder)),
      model_(std::move(model)),
      options_(std::move(options)),
      hooks_(std::move(hooks)) {}

CheckpointStore::~CheckpointStore() = default;

// Makes the files, with room for all that belongs into them, and collects what this rank writes.
std::unique_ptr<CheckpointStore::Pending> CheckpointStore::begin(const roles::Trainer& trainer,
                                                                 parallel::World& world,
                                                                 const LoopState& state) const {
  auto pending = std::make_unique<Pending>();
  pending->folder = checkpoint_path(run_folder_, state.step);
  pending->step = state.step;
  pending->best_step = state.best.step;
  run_phase(world.all(), pending->complaint(), [&] { pending->parts = parts_of(trainer, world); });
  // Space is reserved before anybody writes, so that a full disk is met here, where save() can make
  // room. Where a file system cannot reserve it, that alone writes to every page, and takes long.
  run_long_phase(world.all(), pending->complaint(), [&] {
    if (world.rank() != 0) return;
    pending->files = std::make_unique<AtomicFolder>(pending->folder);
    pending->temporary = pending->files->temporary();
    fs::create_directory(pending->temporary / "state");
    for (const models::CheckpointPart& part : pending->parts)
      models::create_safetensors(pending->temporary / part.folder, part.files);
    models::write_trained_description(trainer.decoder(), trainer.decoder().dtype(), model_,
                                      pending->temporary);
    if (options_.chat_template)
      models::write_chat_template(*options_.chat_template, pending->temporary);
    write_file_atomically(pending->temporary / "state" / "loop.json", write_loop_state(state));
  });
  // Without async nobody trains while the files are written, so the pieces need no copies.
  if (!options_.async) return pending;
  run_phase(world.all(), pending->complaint(), [&] {
    for (models::CheckpointPart& part : pending->parts)
      copy_pieces(part);
  });
  return pending;
}

// The best model's checkpoint, and those that the user's program still reads, are not removed for
// newer ones.
std::set<int64_t> CheckpointStore::kept_steps(int64_t best_step) const {
  std::set<int64_t> kept;
  if (best_step > 0) kept.insert(best_step);
  if (!hooks_.in_use) return kept;
  const std::vector<fs::path> read = hooks_.in_use();
  for (const CheckpointEntry& entry : list_checkpoints(run_folder_))
    if (std::find(read.begin(), read.end(), entry.path) != read.end()) kept.insert(entry.step);
  return kept;
}

// Removes something for a save that found no room, and returns which kind, the same on all ranks.
// First goes what nobody can go on from. Who keeps every checkpoint loses none, damaged or not.
CheckpointStore::Room CheckpointStore::make_room(parallel::World& world, const Error& why,
                                                 int64_t best_step, bool may_drop_oldest) const {
  if (why.code() != ErrorCode::kResourceExhausted) return Room::kNone;
  const bool keeps_all = options_.save_total_limit == 0;
  Room room = Room::kNone;
  std::string dropped;
  run_phase(world.all(), "nothing was removed for a new checkpoint: ", [&] {
    if (world.rank() != 0) return;
    for (const fs::path& useless : drop_useless(run_folder_, !keeps_all)) {
      dropped += (dropped.empty() ? "" : ", ") + useless.string();
      room = Room::kOfUseless;
    }
    if (room != Room::kNone || keeps_all || !may_drop_oldest) return;
    const auto oldest = drop_oldest_checkpoint(run_folder_, kept_steps(best_step));
    if (!oldest) return;
    dropped = oldest->string() + ", the oldest checkpoint,";
    room = Room::kOfOldest;
  });
  if (room != Room::kNone) {
    RETORT_LOG(kWarning) << "removed " << dropped << " and saves again: " << why.what();
  }
  return static_cast<Room>(
      world.all().all_reduce(static_cast<int64_t>(room), parallel::ReduceOp::kMax));
}

fs::path CheckpointStore::save(const roles::Trainer& trainer, parallel::World& world,
                               const LoopState& state) {
  finish(world);  // the checkpoint before this one
  std::unique_ptr<Pending> pending;
  // All checkpoints are of one size: where the room of one did not help, that of a second would
  // not.
  for (bool may_drop_oldest = true; !pending;) {
    try {
      pending = begin(trainer, world, state);
    } catch (const Error& error) {
      const Room room = make_room(world, error, state.best.step, may_drop_oldest);
      if (room == Room::kNone) throw;
      if (room == Room::kOfOldest) may_drop_oldest = false;
    }
  }

  // Every rank writes its slices into the folder that rank 0 has made.
  pending->temporary = world.all().broadcast(pending->temporary.string(), 0);
  // Ranks whose page caches differ write each file in turns (base/write_turn.h).
  const bool in_turns = have_several_caches(world.all(), pending->temporary, pending->complaint());
  // With several ranks a thread writes even if nobody trains meanwhile: this one tells the others
  // that it lives.
  const bool on_thread = options_.async || world.all().size() > 1;
  pending->written = start_work(on_thread, [begun = pending.get(), in_turns] {
    return write_parts(begun->temporary, begun->parts, in_turns);
  });
  pending_ = std::move(pending);
  const fs::path folder = pending_->folder;
  if (!options_.async) finish(world);
  return folder;
}

void CheckpointStore::finish(parallel::World& world) {
  if (!pending_) return;
  const std::unique_ptr<Pending> pending = std::move(pending_);
  const std::string complaint = pending->complaint();
  uint64_t expected = 0;
  WrittenParts written;
  wait_for_all(world.all(), pending->written);
  run_phase(world.all(), complaint, [&] { written = pending->written.get(); });
  for (const models::CheckpointPart& part : pending->parts)
    expected += part.files.num_elements();
  // Each element must have been written by exactly one rank: a slice that nobody wrote would make a
  // checkpoint that looks whole.
  const int64_t total = world.all().all_reduce(static_cast<int64_t>(written.elements));
  RETORT_CHECK(total == static_cast<int64_t>(expected))
      << "the ranks wrote " << total << " elements of " << expected << " of " << pending->folder;
  // The marker and the name come last: a crash before them leaves a folder that nobody takes for a
  // checkpoint.
  models::FileChecksums files = sum_checksums(world, pending->parts, written.checksums);
  run_long_phase(world.all(), complaint, [&] {
    if (world.rank() != 0) return;
    mark_complete(pending->temporary, std::move(files));
    pending->files->commit();
  });
  if (world.rank() != 0) return;
  RETORT_LOG(kInfo) << "saved " << pending->folder.string();
  see_complete(*pending);
}

// Does what follows on a complete checkpoint. The run has what it needs, so nothing here fails it:
// the next checkpoint makes another try.
void CheckpointStore::see_complete(const Pending& pending) const {
  const auto attempt = [&](const std::string& what, const auto& work) {
    try {
      work();
    } catch (const std::exception& error) {
      const auto* own = dynamic_cast<const Error*>(&error);
      const std::string warning = pending.folder.string() + " was saved, but " + what + ": " +
                                  (own ? own->message() : std::string(error.what()));
      RETORT_LOG(kWarning) << warning;
      if (hooks_.warn) hooks_.warn(pending.step, warning);
    }
  };

  attempt("was not given to train.checkpoint_command", [&] {
    if (hooks_.on_complete) hooks_.on_complete(pending.folder);
  });
  attempt("the link to the best one was not set", [&] {
    if (is_checkpoint(run_folder_, pending.best_step)) link_best(run_folder_, pending.best_step);
  });
  attempt("older ones are in the way, until the next try", [&] {
    prune_checkpoints(run_folder_, options_.save_total_limit, kept_steps(pending.best_step));
  });
}

bool is_save_error(const Error& error) {
  return error.code() == ErrorCode::kResourceExhausted || error.code() == ErrorCode::kUnavailable;
}

bool CheckpointStore::busy() const {
  return pending_ &&
         pending_->written.wait_for(std::chrono::seconds(0)) == std::future_status::timeout;
}

}  // namespace retort::recipes

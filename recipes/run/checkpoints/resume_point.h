// Where a resumed run goes on: one checkpoint for all ranks, whole as far as is known.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "parallel/world.h"

namespace retort::recipes {

// How long a network file system may take to show a folder that another host made: NFS keeps what
// it knows of a folder for up to a minute (acdirmax).
inline constexpr Duration kLateFolder{90'000};

// The newest complete checkpoint that the first rank sees; empty: it sees none, and the run begins
// anew. Every rank waits up to `patience` until it sees that one, the same to the byte, compares
// its small files with their checksums, and is sure that all are there. What was set aside as
// damaged since, and what somebody changed that the run does not go on with (a tokenizer), is told
// on the first rank by `warn`.
// Collectives on the world: two votes and a broadcast.
// Errors, on every rank: kMismatch naming the rank's folder, where it does not show the checkpoint;
// damage() with the checkpoint before, as with_checkpoint_before() says it; kUnavailable for a file
// that is there and cannot be read.
std::filesystem::path agree_on_checkpoint(
    parallel::World& world, const std::filesystem::path& run_folder, Duration patience,
    const std::function<void(int64_t step, const std::string& what)>& warn = {});

// The error, and where it says that a file of this checkpoint is damaged what to do, with the
// checkpoint before by name.
Error with_checkpoint_before(const Error& error, const std::filesystem::path& checkpoint);

// Runs fn, which reads the checkpoint ("": none), and throws its errors so.
template <class Fn>
auto read_checkpoint(const std::filesystem::path& checkpoint, Fn&& fn) {
  try {
    return std::forward<Fn>(fn)();
  } catch (const Error& error) {
    throw with_checkpoint_before(error, checkpoint);
  }
}

// Whether this error, as a process told it with its code, is of a damaged checkpoint.
bool is_of_checkpoint(const std::string& code, const std::string& message,
                      const std::filesystem::path& checkpoint);

}  // namespace retort::recipes

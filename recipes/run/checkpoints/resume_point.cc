#include "recipes/run/checkpoints/resume_point.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <optional>
#include <string_view>
#include <thread>

#include "base/deadline.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/process_name.h"
#include "models/safetensors/file_checksums.h"
#include "parallel/vote.h"
#include "recipes/run/checkpoints/checkpoint_folder.h"

namespace retort::recipes {
namespace fs = std::filesystem;
namespace {

constexpr const char* kLoopFile = "state/loop.json";

// Tells checkpoints of one step apart, by where the loop stood and by the checksums of all that
// they hold. "": a file is not there. kUnavailable: one cannot be read.
std::string digest_of(const fs::path& checkpoint) {
  const auto complete = read_file_if_there(checkpoint / models::kCompleteFile);
  const auto loop = read_file_if_there(checkpoint / kLoopFile);
  return complete && loop ? sha256_hex(*complete + '\0' + *loop) : "";
}

// The first rank tells the others where it goes on.
struct SaidPoint {
  int64_t step = -1;  // -1: at the beginning
  std::string digest;

  std::string text() const { return std::to_string(step) + " " + digest; }
  static SaidPoint parse(const std::string& text) {
    SaidPoint point;
    const char* end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, point.step);
    RETORT_CHECK(error == std::errc() && rest != end && *rest == ' ') << text;
    point.digest.assign(rest + 1, end);
    return point;
  }
};

SaidPoint own_point(const fs::path& run_folder) {
  const auto latest = latest_checkpoint(run_folder);
  if (!latest) return {};
  const std::string digest = digest_of(latest->path);
  if (digest.empty()) throw models::damage(latest->path / kLoopFile, "it is missing");
  return {.step = latest->step, .digest = digest};
}

void wait_until_it_shows(const fs::path& checkpoint, const SaidPoint& said, Duration patience) {
  constexpr std::chrono::milliseconds kAgain{100};
  const Deadline deadline = Deadline::after(patience);
  std::string mine;
  for (;;) {
    // A file that cannot be read may become readable, as one that is missing may appear.
    std::optional<Error> failed;
    try {
      mine = digest_of(checkpoint);
    } catch (const Error& error) {
      failed = error;
    }
    if (!failed && mine == said.digest) return;
    if (deadline.expired()) {
      if (failed) throw *failed;
      break;
    }
    std::this_thread::sleep_for(kAgain);
  }

  const auto latest = latest_checkpoint(checkpoint.parent_path());
  const std::string seen =
      mine.empty() ? "is not there; the newest one there is " +
                         (latest ? latest->path.filename().string() : std::string("none"))
                   : "is another one";
  throw Error(ErrorCode::kMismatch,
              process_name("student", 0) + " goes on from " + checkpoint.filename().string() +
                  ", which after " + format_duration(patience) + " in " +
                  checkpoint.parent_path().string() + " as this rank sees it " + seen +
                  "; every host must see the same output_dir");
}

}  // namespace

fs::path agree_on_checkpoint(
    parallel::World& world, const fs::path& run_folder, Duration patience,
    const std::function<void(int64_t step, const std::string& what)>& warn) {
  parallel::Group& all = world.all();
  // The first rank decides. Ranks that each took the newest one they see could take different ones,
  // where a file system shows a folder late.
  const SaidPoint mine = parallel::run_on_all(
      all, [&] { return world.rank() == 0 ? own_point(run_folder) : SaidPoint(); });
  const SaidPoint said = SaidPoint::parse(all.broadcast(mine.text(), 0));
  const fs::path checkpoint = said.step < 0 ? fs::path() : checkpoint_path(run_folder, said.step);

  models::SmallFiles files;
  parallel::run_on_all(all, [&] {
    if (checkpoint.empty()) return;
    wait_until_it_shows(checkpoint, said, patience);
    read_checkpoint(checkpoint, [&] { files = models::check_small_files(checkpoint); });
  });
  if (world.rank() != 0) return checkpoint;

  for (const std::string& changed : files.changed) {
    const std::string what = changed + "; the run goes on without what it says";
    RETORT_LOG(kWarning) << what;
    if (warn) warn(said.step, what);
  }
  if (!files.has_checksums) {
    RETORT_LOG(kInfo) << checkpoint.string()
                      << " has no checksums, so that damage to it may go unseen: an earlier "
                         "version saved it, or somebody wrote its "
                      << models::kCompleteFile;
  }
  for (const CheckpointEntry& aside : list_set_aside(run_folder)) {
    if (aside.step <= said.step) continue;
    const std::string what =
        "checkpoint-" + std::to_string(aside.step) + " is damaged, and is now " +
        aside.path.string() + "; the run goes on from " +
        (checkpoint.empty() ? std::string("its beginning") : checkpoint.filename().string());
    RETORT_LOG(kWarning) << what;
    if (warn) warn(std::max<int64_t>(said.step, 0), what);
  }
  return checkpoint;
}

bool is_of_checkpoint(const std::string& code, const std::string& message,
                      const fs::path& checkpoint) {
  return code == to_string(ErrorCode::kCorrupt) && !checkpoint.empty() &&
         message.find(checkpoint.string() + "/") != std::string::npos;
}

Error with_checkpoint_before(const Error& error, const fs::path& checkpoint) {
  const std::string code(to_string(error.code()));
  if (!is_of_checkpoint(code, error.message(), checkpoint)) return error;
  const std::string name = checkpoint.filename().string();
  const auto before = checkpoint_before(checkpoint);
  const std::string advice = before ? "; restore it, or go on from " +
                                          before->path.filename().string() + " before it: move " +
                                          name + " away (launch.max_restarts does both by itself)"
                                    : "; restore it: there is no checkpoint before it";
  return Error(error.code(), error.message() + advice, error.origin(), error.context());
}

}  // namespace retort::recipes

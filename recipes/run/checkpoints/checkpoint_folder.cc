#include "recipes/run/checkpoints/checkpoint_folder.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "models/lora/lora_config.h"

namespace retort::recipes {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kPrefix = "checkpoint-";
constexpr std::string_view kSetAside = ".damaged";

// The step in "checkpoint-<step><rest>"; rest is "" for a checkpoint, ".tmp-<pid>" and the like for
// what a crash left.
std::optional<std::pair<int64_t, std::string>> parse_name(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  if (error != std::errc() || step < 0) return std::nullopt;
  return std::pair(step, std::string(rest, end));
}

// True of what follows the step in the name of a folder that a crash left (base/file.h:
// AtomicFolder). Other names are somebody's own, and stay.
bool is_temporary(const std::string& rest) {
  return rest.starts_with(".tmp-") || rest.starts_with(".old-");
}

void remove_folder(const fs::path& path) {
  // The marker goes first, so that a crash in the middle leaves nothing that looks whole.
  std::error_code failed;
  fs::remove(path / models::kCompleteFile, failed);
  fs::remove_all(path, failed);
  if (failed)
    throw Error(ErrorCode::kUnavailable,
                "cannot remove " + path.string() + ": " + failed.message());
}

bool is_complete(const fs::path& path) {
  return fs::is_regular_file(path / models::kCompleteFile) &&
         (fs::is_regular_file(path / "config.json") || models::is_adapter_folder(path));
}

}  // namespace

fs::path checkpoint_path(const fs::path& output_dir, int64_t step) {
  return output_dir / (std::string(kPrefix) + std::to_string(step));
}

void mark_complete(const fs::path& checkpoint, models::FileChecksums files) {
  std::error_code failed;
  fs::create_directories(checkpoint / "state", failed);
  if (failed)
    throw Error(ErrorCode::kUnavailable,
                "cannot create folder in " + checkpoint.string() + ": " + failed.message());
  for (const auto& entry : fs::recursive_directory_iterator(checkpoint)) {
    const std::string name = entry.path().lexically_relative(checkpoint).generic_string();
    if (entry.is_regular_file() && name != models::kCompleteFile && !files.contains(name))
      files.emplace(name, models::checksum_of_file(entry.path()));
  }
  // The marker is written last: that it is there says that everything else is.
  write_file_atomically(checkpoint / models::kCompleteFile, models::write_checksums(files));
}

std::vector<CheckpointEntry> list_checkpoints(const fs::path& output_dir) {
  std::vector<CheckpointEntry> found;
  if (!fs::is_directory(output_dir)) return found;
  for (const auto& entry : fs::directory_iterator(output_dir)) {
    const auto name = parse_name(entry.path().filename().string());
    if (name && name->second.empty() && entry.is_directory() && is_complete(entry.path()))
      found.push_back({name->first, entry.path()});
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.step < b.step; });
  return found;
}

bool is_checkpoint(const fs::path& output_dir, int64_t step) {
  return is_complete(checkpoint_path(output_dir, step));
}

std::optional<CheckpointEntry> latest_checkpoint(const fs::path& output_dir) {
  const auto found = list_checkpoints(output_dir);
  if (found.empty()) return std::nullopt;
  return found.back();
}

std::optional<CheckpointEntry> checkpoint_before(const fs::path& checkpoint) {
  const auto name = parse_name(checkpoint.filename().string());
  std::optional<CheckpointEntry> before;
  for (const CheckpointEntry& entry : list_checkpoints(checkpoint.parent_path()))
    if (name && entry.step < name->first) before = entry;
  return before;
}

fs::path set_aside(const fs::path& output_dir, int64_t step) {
  const fs::path path = checkpoint_path(output_dir, step);
  const std::string first = path.string() + std::string(kSetAside);
  // There is one of the same step if a run came to it again.
  fs::path aside = first;
  for (int next = 2; fs::symlink_status(aside).type() != fs::file_type::not_found; ++next)
    aside = first + "-" + std::to_string(next);
  rename_file(path, aside);
  return aside;
}

std::vector<CheckpointEntry> list_set_aside(const fs::path& output_dir) {
  std::vector<CheckpointEntry> found;
  if (!fs::is_directory(output_dir)) return found;
  for (const auto& entry : fs::directory_iterator(output_dir)) {
    const auto name = parse_name(entry.path().filename().string());
    if (name && name->second.starts_with(kSetAside)) found.push_back({name->first, entry.path()});
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return std::pair(a.step, a.path) < std::pair(b.step, b.path);
  });
  return found;
}

void prune_checkpoints(const fs::path& output_dir, int64_t save_total_limit,
                       const std::set<int64_t>& kept) {
  const auto complete = list_checkpoints(output_dir);
  if (complete.empty()) return;
  // What is incomplete before the newest checkpoint was left by a crash. What is incomplete behind
  // it may be a checkpoint that is still being written.
  std::vector<fs::path> doomed;
  for (const auto& entry : fs::directory_iterator(output_dir)) {
    const auto name = parse_name(entry.path().filename().string());
    if (name && name->first < complete.back().step && entry.is_directory() && !entry.is_symlink() &&
        (name->second.empty() ? !is_complete(entry.path()) : is_temporary(name->second)))
      doomed.push_back(entry.path());
  }
  // The limit keeps the newest. Those that are kept anyway do not count, unless one is the newest.
  int64_t counted = 0;
  for (auto entry = complete.rbegin(); save_total_limit > 0 && entry != complete.rend(); ++entry) {
    if (entry != complete.rbegin() && kept.contains(entry->step)) continue;
    if (++counted > save_total_limit) doomed.push_back(entry->path);
  }
  // Damaged checkpoints take what the limit leaves; those behind the newest complete one stay.
  const auto aside = list_set_aside(output_dir);
  for (auto entry = aside.rbegin(); save_total_limit > 0 && entry != aside.rend(); ++entry)
    if (++counted > save_total_limit && entry->step < complete.back().step)
      doomed.push_back(entry->path);
  // One folder that cannot be removed must not keep the others.
  std::string failures;
  for (const auto& path : doomed) {
    try {
      remove_folder(path);
    } catch (const Error& error) {
      failures += (failures.empty() ? "" : "; ") + error.message();
    }
  }
  if (!failures.empty()) throw Error(ErrorCode::kUnavailable, failures);
}

std::vector<fs::path> drop_useless(const fs::path& output_dir, bool damaged) {
  std::vector<fs::path> doomed;
  if (!fs::is_directory(output_dir)) return doomed;
  for (const auto& entry : fs::directory_iterator(output_dir)) {
    const auto name = parse_name(entry.path().filename().string());
    if (name && is_temporary(name->second) && entry.is_directory() && !entry.is_symlink())
      doomed.push_back(entry.path());
  }
  if (damaged)
    for (const CheckpointEntry& entry : list_set_aside(output_dir))
      doomed.push_back(entry.path);

  // A folder that cannot be removed is passed over: another one may make enough room.
  std::vector<fs::path> dropped;
  for (const fs::path& path : doomed) {
    try {
      remove_folder(path);
      dropped.push_back(path);
    } catch (const Error& error) {
      RETORT_LOG(kWarning) << error.message();
    }
  }
  return dropped;
}

std::optional<fs::path> drop_oldest_checkpoint(const fs::path& output_dir,
                                               const std::set<int64_t>& kept) {
  const auto complete = list_checkpoints(output_dir);
  // The newest one stays in any case: it is what the run would go on from.
  for (size_t i = 0; i + 1 < complete.size(); ++i) {
    if (kept.contains(complete[i].step)) continue;
    try {
      remove_folder(complete[i].path);
    } catch (const Error& error) {
      RETORT_LOG(kWarning) << error.message();
      continue;
    }
    return complete[i].path;
  }
  return std::nullopt;
}

namespace {

void link_checkpoint(const fs::path& output_dir, const std::string& name, int64_t step) {
  // A link cannot be changed in place. A new one is renamed over it, so that whoever reads it
  // always finds one.
  const fs::path temporary = output_dir / (name + temporary_suffix());
  const fs::path target = checkpoint_path(output_dir, step).filename();
  std::error_code failed;
  fs::remove(temporary, failed);
  fs::create_directory_symlink(target, temporary, failed);
  if (failed)
    throw Error(ErrorCode::kUnavailable, "cannot link " + name + " to " + target.string() + " in " +
                                             output_dir.string() + ": " + failed.message());
  try {
    rename_file(temporary, output_dir / name);
  } catch (const Error&) {
    fs::remove(temporary, failed);
    throw;
  }
}

}  // namespace

void link_final(const fs::path& output_dir, int64_t step) {
  link_checkpoint(output_dir, "final", step);
}

void link_best(const fs::path& output_dir, int64_t step) {
  link_checkpoint(output_dir, "best", step);
}

}  // namespace retort::recipes

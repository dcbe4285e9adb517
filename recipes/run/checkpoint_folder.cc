#include "recipes/run/checkpoint_folder.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "models/lora/lora_config.h"

namespace retort::recipes {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kPrefix = "checkpoint-";

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

void remove_folder(const fs::path& path) {
  // Without its marker first, so that a crash in the middle leaves nothing that looks whole.
  std::error_code failed;
  fs::remove(path / "state" / "COMPLETE", failed);
  fs::remove_all(path, failed);
  if (failed)
    throw Error(ErrorCode::kUnavailable,
                "cannot remove " + path.string() + ": " + failed.message());
}

bool is_complete(const fs::path& path) {
  return fs::is_regular_file(path / "state" / "COMPLETE") &&
         (fs::is_regular_file(path / "config.json") || models::is_adapter_folder(path));
}

}  // namespace

fs::path checkpoint_path(const fs::path& output_dir, int64_t step) {
  return output_dir / (std::string(kPrefix) + std::to_string(step));
}

void mark_complete(const fs::path& checkpoint) {
  std::error_code failed;
  fs::create_directories(checkpoint / "state", failed);
  if (failed)
    throw Error(ErrorCode::kUnavailable,
                "cannot create folder in " + checkpoint.string() + ": " + failed.message());
  write_file_atomically(checkpoint / "state" / "COMPLETE", "complete\n");
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

void prune_checkpoints(const fs::path& output_dir, int64_t save_total_limit,
                       const std::set<int64_t>& kept) {
  const auto complete = list_checkpoints(output_dir);
  if (complete.empty()) return;
  std::vector<fs::path> doomed;
  for (const auto& entry : fs::directory_iterator(output_dir)) {
    const auto name = parse_name(entry.path().filename().string());
    if (name && name->first < complete.back().step && entry.is_directory() && !entry.is_symlink() &&
        (!name->second.empty() || !is_complete(entry.path())))
      doomed.push_back(entry.path());
  }
  // The newest first: those that are kept anyway do not count, unless one is the newest.
  int64_t counted = 0;
  for (auto entry = complete.rbegin(); save_total_limit > 0 && entry != complete.rend(); ++entry) {
    if (entry != complete.rbegin() && kept.contains(entry->step)) continue;
    if (++counted > save_total_limit) doomed.push_back(entry->path);
  }
  for (const auto& path : doomed)
    remove_folder(path);
}

std::optional<fs::path> drop_oldest_checkpoint(const fs::path& output_dir,
                                               const std::set<int64_t>& kept) {
  const auto complete = list_checkpoints(output_dir);
  for (size_t i = 0; i + 1 < complete.size(); ++i) {
    if (kept.contains(complete[i].step)) continue;
    remove_folder(complete[i].path);
    return complete[i].path;
  }
  return std::nullopt;
}

namespace {

void link_checkpoint(const fs::path& output_dir, const std::string& name, int64_t step) {
  const fs::path temporary = output_dir / (name + temporary_suffix());
  const fs::path target = checkpoint_path(output_dir, step).filename();
  std::error_code failed;
  fs::remove(temporary, failed);
  fs::create_directory_symlink(target, temporary, failed);
  if (!failed) fs::rename(temporary, output_dir / name, failed);
  if (failed)
    throw Error(ErrorCode::kUnavailable, "cannot link " + name + " to " + target.string() + " in " +
                                             output_dir.string() + ": " + failed.message());
}

}  // namespace

void link_final(const fs::path& output_dir, int64_t step) {
  link_checkpoint(output_dir, "final", step);
}

void link_best(const fs::path& output_dir, int64_t step) {
  link_checkpoint(output_dir, "best", step);
}

}  // namespace retort::recipes

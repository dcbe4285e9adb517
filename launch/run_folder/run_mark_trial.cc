#include "launch/run_folder/run_mark_trial.h"

#include <algorithm>

#include "launch/run_folder/run_mark.h"

namespace retort::launch {
namespace fs = std::filesystem;

RunMarkTrial::RunMarkTrial(const fs::path& run_folder) : folder_(run_folder) {
  try {
    make();
  } catch (const fs::filesystem_error& error) {
    error_ = Error(ErrorCode::kUnavailable, error.what());
  } catch (const Error& error) {
    error_ = error;
  }
  // Where processes of a run hold the mark it cannot be made anew, and theirs is read instead.
  if (!error_ || !fs::exists(folder_ / kRunMark)) return;
  try {
    text_ = read_run_mark(folder_).text;
  } catch (const Error& error) {
    error_ = error;
  }
}

void RunMarkTrial::make() {
  // Folders are made one by one from the top, so that the destructor can remove them from below.
  std::vector<fs::path> missing;
  for (fs::path one = folder_; !fs::exists(one); one = one.parent_path())
    missing.push_back(one);
  std::ranges::reverse(missing);
  for (const fs::path& one : missing) {
    fs::create_directory(one);
    made_.push_back(one);
  }

  // A mark on a full disk is a file without a text, which must be removed as well, so own_ is set
  // before the text is written.
  const bool is_new = !fs::exists(folder_ / kRunMark);
  if (is_new) own_ = "";
  text_ = make_run_mark(folder_, Duration(0));
  if (is_new) own_ = text_;
}

RunMarkTrial::~RunMarkTrial() {
  try {
    if (own_) remove_run_mark(folder_, *own_);
  } catch (const std::exception&) {
    // Somebody has removed it.
  }
  for (auto one = made_.rbegin(); one != made_.rend(); ++one) {
    std::error_code not_empty;  // somebody else has put something there meanwhile
    fs::remove(*one, not_empty);
  }
}

}  // namespace retort::launch

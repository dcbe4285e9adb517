// A run's mark (launch/run_folder/run_mark.h) for as long as somebody looks at it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"

namespace retort::launch {

// Makes the mark in the run's folder, and the folder if there is none; the destructor removes what
// it made. Where processes of a run hold the mark, theirs is taken as it is.
class RunMarkTrial {
 public:
  explicit RunMarkTrial(const std::filesystem::path& run_folder);
  ~RunMarkTrial();
  RunMarkTrial(const RunMarkTrial&) = delete;
  RunMarkTrial& operator=(const RunMarkTrial&) = delete;

  // "" where none can be made.
  const std::string& text() const { return text_; }
  // Why it was not made, or not anew.
  const std::optional<Error>& error() const { return error_; }

 private:
  void make();

  const std::filesystem::path folder_;
  std::vector<std::filesystem::path> made_;  // folders, in order
  std::string text_;
  std::optional<std::string> own_;  // the mark, if there was none
  std::optional<Error> error_;
};

}  // namespace retort::launch

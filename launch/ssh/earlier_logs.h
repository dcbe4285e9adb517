// The logs of hosts in a run that another one replaces.
#pragma once

#include <filesystem>
#include <utility>
#include <vector>

namespace retort::launch {

// Hosts are connected to while the earlier run is still there, so that what they say would stand
// behind what they said in that one. Its logs lie aside from the first connection until it is
// removed. A start that ends before that puts them back, and what hosts said to it behind them:
// the run in the folder is the earlier one, and why it was not replaced may be looked for there.
// A launcher that is killed meanwhile leaves them under names of temporary files, which the next
// --overwrite removes.
// Threads: one.
class EarlierLogs {
 public:
  EarlierLogs() = default;
  // Puts those of `logs` aside that are there. kUnavailable where one cannot be.
  explicit EarlierLogs(const std::vector<std::filesystem::path>& logs);
  // Puts them back unless the run is removed. Nobody may write to the logs any more.
  ~EarlierLogs();
  EarlierLogs(EarlierLogs&& other) noexcept : aside_(std::exchange(other.aside_, {})) {}
  EarlierLogs& operator=(EarlierLogs&&) = delete;

  // The earlier run is removed, and they are with it.
  void remove();

 private:
  void put_back();

  // where they were, where they are
  std::vector<std::pair<std::filesystem::path, std::filesystem::path>> aside_;
};

}  // namespace retort::launch

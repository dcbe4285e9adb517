#include "launch/ssh/earlier_logs.h"

#include <iostream>
#include <optional>
#include <string>
#include <system_error>

#include "base/append_file.h"
#include "base/error.h"
#include "base/file.h"
#include "base/process/owned_fd.h"

namespace retort::launch {
namespace fs = std::filesystem;

EarlierLogs::EarlierLogs(const std::vector<fs::path>& logs) {
  for (const fs::path& log : logs) {
    const fs::path aside = log.string() + temporary_suffix();
    std::error_code failed;
    fs::rename(log, aside, failed);
    if (failed == std::errc::no_such_file_or_directory) continue;
    if (failed) {
      put_back();
      throw Error(ErrorCode::kUnavailable, "cannot rename " + log.string() + " to " +
                                               aside.string() + ": " + failed.message());
    }
    aside_.emplace_back(log, aside);
  }
}

EarlierLogs::~EarlierLogs() { put_back(); }

void EarlierLogs::remove() {
  for (const auto& [log, aside] : aside_) {
    std::error_code ignored;  // it is gone with the earlier run, unless `logs` is a link
    fs::remove(aside, ignored);
  }
  aside_.clear();
}

void EarlierLogs::put_back() {
  for (const auto& [log, aside] : aside_) {
    std::error_code unknown;
    if (!fs::exists(aside, unknown)) continue;
    try {
      // Appended before it is renamed, so that a crash in between loses nothing.
      const OwnedFd file(open_for_append(aside));
      append_bytes(file.get(), read_file_if_there(log).value_or(""), aside);
      fs::rename(aside, log);
    } catch (const std::exception& error) {
      std::cerr << "note: what hosts said in the run before is in " << aside.string()
                << ", and could not be put back: " << error.what() << std::endl;
    }
  }
  aside_.clear();
}

}  // namespace retort::launch

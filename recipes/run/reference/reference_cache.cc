#include "recipes/run/reference/reference_cache.h"

#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/append_file.h"
#include "base/cache_key.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

namespace retort::recipes {
namespace fs = std::filesystem;
namespace {

struct Record {
  std::array<char, kContentKeyBytes> key;
  float value;
  uint32_t check;
};
static_assert(sizeof(Record) == 24);

uint32_t check_of(const Record& record) {
  uint32_t words[5];
  std::memcpy(words, &record, sizeof words);
  uint32_t check = 0x52544c50;  // differs from 0 for a record of zeros
  for (const uint32_t word : words)
    check = check * 31 + word;
  return check;
}

}  // namespace

ReferenceCache::ReferenceCache(const fs::path& root, const std::string& fingerprint,
                               const fs::path& run_folder, int64_t rank) {
  // A run keeps to one reference, also when it is resumed.
  const fs::path known = run_folder / "cache" / "reference.fingerprint";
  if (fs::exists(known)) {
    if (const std::string before = read_file(known); before != fingerprint)
      throw Error(
          ErrorCode::kMismatch,
          "the reference model or its tokenizer changed since this run began (fingerprint " +
              before.substr(0, 16) + ", now " + fingerprint.substr(0, 16) +
              "); restore it, or start a new run");
  } else if (rank == 0) {
    fs::create_directories(known.parent_path());
    write_file_atomically(known, fingerprint);
  }

  // A rank knows what all ranks of all runs have written, and appends to a file that is its own.
  const fs::path folder = root / ("reference-" + fingerprint.substr(0, 16));
  fs::create_directories(folder);
  own_file(folder, "rank-" + std::to_string(rank));
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".logps") read(entry.path());
  if (!values_.empty()) {
    RETORT_LOG(kInfo) << values_.size() << " log-probabilities of the reference are known from "
                      << folder.string();
  }
}

ReferenceCache::~ReferenceCache() {
  if (fd_ >= 0) ::close(fd_);
}

// Opens the first file of the rank that no other run appends to. Its lock ends with the process, so
// a killed run leaves none behind.
void ReferenceCache::own_file(const fs::path& folder, const std::string& name) {
  for (int64_t others = 0;; ++others) {
    path_ = folder / (name + (others == 0 ? "" : "-" + std::to_string(others)) + ".logps");
    fd_ = open_for_append(path_);
    if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) break;
    const int failed = errno;
    ::close(std::exchange(fd_, -1));
    if (failed != EWOULDBLOCK)
      throw Error(ErrorCode::kUnavailable,
                  path_.string() + " cannot be locked against other runs: " +
                      std::generic_category().message(failed) +
                      "; choose a reference_cache on a file system with locks");
  }

  // A torn record at the end, of a run that was killed, would shift all that follow.
  const auto size = fs::file_size(path_);
  if (size % sizeof(Record) != 0) fs::resize_file(path_, size - size % sizeof(Record));
}

void ReferenceCache::read(const fs::path& file) {
  const std::string bytes = read_file(file);
  int64_t bad = 0;
  for (size_t at = 0; at + sizeof(Record) <= bytes.size(); at += sizeof(Record)) {
    Record record;
    std::memcpy(&record, bytes.data() + at, sizeof record);
    if (record.check == check_of(record))
      values_.emplace(std::string(record.key.data(), kContentKeyBytes), record.value);
    else
      ++bad;
  }
  if (bad > 0) {
    RETORT_LOG(kWarning) << bad << " damaged records of " << file.string() << " are ignored";
  }
}

std::optional<float> ReferenceCache::find(const std::vector<int32_t>& prompt,
                                          const std::vector<int32_t>& completion) const {
  const auto found = values_.find(cache_key(prompt, completion));
  if (found == values_.end()) return std::nullopt;
  return found->second;
}

void ReferenceCache::add(const std::vector<int32_t>& prompt, const std::vector<int32_t>& completion,
                         float log_prob) {
  const std::string key = cache_key(prompt, completion);
  // The first number of a completion counts; another batch may give one with other last bits.
  if (!values_.emplace(key, log_prob).second) return;
  Record record{};
  std::memcpy(record.key.data(), key.data(), kContentKeyBytes);
  record.value = log_prob;
  record.check = check_of(record);
  append_bytes(fd_, std::string_view(reinterpret_cast<const char*>(&record), sizeof record), path_);
}

}  // namespace retort::recipes

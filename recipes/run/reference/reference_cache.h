// Log-probabilities that a frozen reference gave to whole completions, kept on disk by content.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace retort::recipes {

// One folder for each reference: `<root>/reference-<16 hex digits of the fingerprint>/`, in it one
// file of 24-byte records for each writing rank: SHA-256 of (prompt length, token ids) cut to 16
// bytes, the sum as float32, a check word. Records are appended with one write each, so a killed
// run loses at most the record it was writing; a record that does not check is ignored. Several
// runs may use a folder at once: each writes files that it has locked, and knows what the others
// had written when it began. Memory: about 64 bytes for each completion. Threads: one.
class ReferenceCache {
 public:
  // `fingerprint`: of the reference's weights and tokenizer. `run_folder`: the run that it belongs
  // to from now on; kMismatch if the run has used another reference before.
  ReferenceCache(const std::filesystem::path& root, const std::string& fingerprint,
                 const std::filesystem::path& run_folder, int64_t rank);
  ~ReferenceCache();
  ReferenceCache(const ReferenceCache&) = delete;
  ReferenceCache& operator=(const ReferenceCache&) = delete;

  std::optional<float> find(const std::vector<int32_t>& prompt,
                            const std::vector<int32_t>& completion) const;
  // kResourceExhausted when the disk is full.
  void add(const std::vector<int32_t>& prompt, const std::vector<int32_t>& completion,
           float log_prob);
  int64_t size() const { return static_cast<int64_t>(values_.size()); }

 private:
  void own_file(const std::filesystem::path& folder, const std::string& name);
  void read(const std::filesystem::path& file);
  std::unordered_map<std::string, float> values_;
  int fd_ = -1;
  std::filesystem::path path_;
};

}  // namespace retort::recipes

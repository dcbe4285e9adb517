// The bad rows of a data set, so that a message can name all of them at once.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace retort::data {

// Counts them, and keeps the first kMostShown. Memory: that of so many messages.
class BadRows {
 public:
  static constexpr size_t kMostShown = 20;

  // `origin`: its file and line, "train.jsonl:17"; `message` begins with it.
  void add(std::string origin, std::string message);
  int64_t count() const { return count_; }
  // Messages of the first ones.
  const std::vector<std::string>& messages() const { return messages_; }

  // "3 of 20 rows are bad; the first: train.jsonl:3: malformed JSON ...; all: train.jsonl:3, 7,
  // 12". Of a single one its message alone. There must be one.
  std::string text(int64_t num_rows) const;
  // With one or more: logs what is wrong with each that is kept, and throws kInvalidArgument with
  // text().
  void refuse(int64_t num_rows) const;

 private:
  int64_t count_ = 0;
  std::vector<std::string> origins_, messages_;
};

// make(); what it says of a bad row (kInvalidArgument) goes to `bad` instead.
template <class Make>
void collect_bad_row(BadRows& bad, const std::string& origin, Make&& make) {
  try {
    std::forward<Make>(make)();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    bad.add(origin, error.message());
  }
}

}  // namespace retort::data

// Final hidden states that a teacher keeps until the student has said which ids it wants.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

namespace retort::roles {

// Rows of requests, each to be taken once. What is not there, or no longer, is computed again from
// the request, which always comes whole: so a lost lease costs a forward pass and changes no bit.
// Every rank of a replica keeps the same books, also one that has no rows, so that all agree on
// whether a forward pass follows: sizes are stated, and time is the leader's. Threads: compute.
class KeptRows {
 public:
  struct Options {
    int64_t max_bytes = int64_t{1} << 30;
    std::chrono::milliseconds lease{240'000};
  };
  explicit KeptRows(Options options) : options_(options) {}

  // What does not fit is not kept: the older ones are wanted sooner. `rows` may be undefined.
  void keep(const std::string& key, const at::Tensor& rows, int64_t bytes, int64_t now_ms);
  // Whether they are there; moves them to `rows`.
  bool take(const std::string& key, int64_t now_ms, at::Tensor& rows);

  int64_t bytes() const { return bytes_; }
  size_t size() const { return kept_.size(); }

 private:
  struct Kept {
    at::Tensor rows;
    int64_t bytes = 0;
    int64_t until_ms = 0;
  };
  void forget_old(int64_t now_ms);

  Options options_;
  std::map<std::string, Kept> kept_;
  int64_t bytes_ = 0;
};

}  // namespace retort::roles

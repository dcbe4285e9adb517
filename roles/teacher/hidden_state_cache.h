// Final hidden states that a teacher keeps until the student has said which ids it wants.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

namespace retort::roles {

// Rows of requests, each to be taken once. What is not there is computed from the request that
// wants it, which always comes whole: so what finds no room costs time and changes no bit.
//
// Every rank of a replica keeps the same books, also one that has no rows, so that all agree on
// whether a forward pass follows: what is kept and forgotten is a function of the requests alone,
// of their stated sizes and steps. Threads: compute.
class HiddenStateCache {
 public:
  struct Options {
    int64_t max_bytes = int64_t{1} << 30;
  };
  explicit HiddenStateCache(Options options) : options_(options) {}

  bool contains(const std::string& key) const { return kept_.contains(key); }
  bool has_room(int64_t bytes) const { return bytes_ + bytes <= options_.max_bytes; }
  // Rows that find no room are not kept: those that are there are wanted sooner. `rows` may be
  // undefined.
  void keep(const std::string& key, int64_t step, const at::Tensor& rows, int64_t bytes);
  // True if they are there; moves them to `rows`.
  bool take(const std::string& key, at::Tensor& rows);
  // Forgets rows of steps before this one, which nobody asks for any more: a step's ids are named
  // once all of the step before have their answers.
  void forget_before(int64_t step);

  int64_t bytes() const { return bytes_; }
  size_t size() const { return kept_.size(); }

 private:
  struct Kept {
    int64_t step = 0;
    at::Tensor rows;
    int64_t bytes = 0;
  };

  Options options_;
  std::map<std::string, Kept> kept_;
  int64_t bytes_ = 0;
};

}  // namespace retort::roles

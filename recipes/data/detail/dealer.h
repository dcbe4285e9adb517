// Deals the packs of a global batch out to ranks and micro-batches, the same on every rank.
#pragma once

#include <cstdint>
#include <vector>

#include "recipes/data/detail/pack_sequence.h"

namespace retort::data::detail {

class Dealer {
 public:
  explicit Dealer(const BatchOptions& options)
      : options_(options),
        tokens_(static_cast<size_t>(options.micro_batches * options.dp_size), 0) {}

  bool has_room(const Pack& pack) const {
    if (closed_) return false;
    if (options_.tokens_per_micro_batch > 0)
      return tokens_[slot()] + pack.tokens <= options_.tokens_per_micro_batch;
    return dealt_ < options_.rows_per_micro_batch * options_.micro_batches * options_.dp_size;
  }
  int64_t rank() const { return dealt_ % options_.dp_size; }
  int64_t micro_batch() const {
    if (options_.tokens_per_micro_batch > 0) return static_cast<int64_t>(slot()) / options_.dp_size;
    return dealt_ / options_.dp_size / options_.rows_per_micro_batch;
  }
  void deal(const Pack& pack) {
    tokens_[slot()] += pack.tokens;
    ++dealt_;
    closed_ = pack.ends_batch;
  }
  int64_t dealt() const { return dealt_; }

 private:
  size_t slot() const { return static_cast<size_t>(dealt_) % tokens_.size(); }
  const BatchOptions& options_;
  std::vector<int64_t> tokens_;  // dealt to each slot
  int64_t dealt_ = 0;
  bool closed_ = false;
};

}  // namespace retort::data::detail

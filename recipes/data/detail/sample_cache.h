// Lengths of all samples seen, and the most recently used samples themselves.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "recipes/data/dataset.h"

namespace retort::data::detail {

// Memory: 4 bytes for each row, plus at most `limit_bytes` of samples. One thread.
class SampleCache {
 public:
  SampleCache(std::shared_ptr<const Dataset> dataset, int64_t limit_bytes);
  // Tokens of the row; 0 for a bad one that is skipped. Makes the sample if its length is not known yet.
  int64_t length(int64_t row);
  // RETORT_CHECKs that the row is a good one.
  Sample sample(int64_t row);
  const Dataset& dataset() const { return *dataset_; }

 private:
  std::optional<Sample> read(int64_t row);
  void keep(int64_t row, const Sample& sample);

  std::shared_ptr<const Dataset> dataset_;
  std::vector<int32_t> lengths_;  // -1: not known
  int64_t limit_bytes_, used_bytes_ = 0;
  std::list<std::pair<int64_t, Sample>> recent_;  // front: used last
  std::unordered_map<int64_t, std::list<std::pair<int64_t, Sample>>::iterator> places_;
};

}  // namespace retort::data::detail

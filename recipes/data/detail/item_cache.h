// Token counts of all rows seen, and the most recently used samples themselves.
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "recipes/data/dataset.h"
#include "recipes/data/preference_dataset.h"

namespace retort::data::detail {

// The facts of a row that forming batches needs.
class RowCosts {
 public:
  virtual ~RowCosts() = default;
  // Tokens of the row; 0 for a bad one that is skipped. Makes the sample if that is not known yet.
  virtual int64_t tokens(int64_t row) = 0;
  // True if a part of the row has a target; its first token is none, as nothing predicts it.
  virtual bool has_target(int64_t row, int64_t begin, int64_t end) = 0;
  virtual const RowSet& rows() const = 0;
};

inline int64_t tokens_of(const Sample& sample) {
  return static_cast<int64_t>(sample.input_ids.size());
}
inline int64_t tokens_of(const PreferenceSample& pair) { return pair.num_tokens(); }

inline size_t bytes_of_ids(const Sample& sample) {
  return sample.input_ids.size() * sizeof(int32_t) + sample.is_target.size();
}
inline size_t bytes_of_ids(const PreferenceSample& pair) {
  return (pair.prompt_ids.size() + pair.own_prompt_of_rejected.size() + pair.chosen_ids.size() +
          pair.rejected_ids.size()) *
         sizeof(int32_t);
}

inline bool has_target_in(const Sample& sample, int64_t begin, int64_t end) {
  const auto first = sample.is_target.begin();
  return std::find(first + begin + 1, first + end, 1) != first + end;
}
// Items of other kinds are used whole, and a whole one has a target.
template <class Item>
bool has_target_in(const Item&, int64_t, int64_t) {
  return true;
}

// The memory for the items that a stream keeps.
inline constexpr int64_t kItemCacheBytes = int64_t{256} << 20;

// Memory: 4 bytes for each row, plus at most `limit_bytes` of samples. One thread.
template <class Set, class Item>
class ItemCache final : public RowCosts {
 public:
  ItemCache(std::shared_ptr<const Set> set, int64_t limit_bytes)
      : set_(std::move(set)),
        tokens_(static_cast<size_t>(set_->size()), -1),
        limit_bytes_(limit_bytes) {}

  int64_t tokens(int64_t row) override {
    int32_t& known = tokens_[static_cast<size_t>(row)];
    if (known < 0) {
      const std::optional<Item> item = read(row);
      known = item ? static_cast<int32_t>(tokens_of(*item)) : 0;
    }
    return known;
  }
  bool has_target(int64_t row, int64_t begin, int64_t end) override {
    return has_target_in(item(row), begin, end);
  }
  const RowSet& rows() const override { return *set_; }

  // RETORT_CHECKs that the row is a good one.
  Item item(int64_t row) {
    if (const auto place = places_.find(row); place != places_.end()) {
      recent_.splice(recent_.begin(), recent_, place->second);
      return place->second->second;
    }
    std::optional<Item> item = read(row);
    RETORT_CHECK(item.has_value()) << "row " << row << " was good before";
    return std::move(*item);
  }

 private:
  static int64_t bytes_of(const Item& item) {
    size_t bytes = 256 + bytes_of_ids(item) + item.origin.size();
    for (const auto& [name, value] : item.fields)
      bytes += 64 + name.size() + value.size();
    return static_cast<int64_t>(bytes);
  }
  std::optional<Item> read(int64_t row) {
    std::optional<Item> item = set_->get(row);
    if (item) keep(row, *item);
    return item;
  }
  void keep(int64_t row, const Item& item) {
    const int64_t bytes = bytes_of(item);
    if (bytes > limit_bytes_ || places_.contains(row)) return;
    // The items that were not used for longest make room.
    while (used_bytes_ + bytes > limit_bytes_) {
      used_bytes_ -= bytes_of(recent_.back().second);
      places_.erase(recent_.back().first);
      recent_.pop_back();
    }
    recent_.emplace_front(row, item);
    places_.emplace(row, recent_.begin());
    used_bytes_ += bytes;
  }

  std::shared_ptr<const Set> set_;
  std::vector<int32_t> tokens_;  // -1: not known
  int64_t limit_bytes_, used_bytes_ = 0;
  std::list<std::pair<int64_t, Item>> recent_;  // front: used last
  std::unordered_map<int64_t, typename std::list<std::pair<int64_t, Item>>::iterator> places_;
};

using SampleCache = ItemCache<Dataset, Sample>;
using PairCache = ItemCache<PreferenceDataset, PreferenceSample>;

}  // namespace retort::data::detail

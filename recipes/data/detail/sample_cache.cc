#include "recipes/data/detail/sample_cache.h"

#include "base/error.h"

namespace retort::data::detail {
namespace {

int64_t bytes_of(const Sample& sample) {
  size_t bytes = 256 + sample.input_ids.size() * sizeof(int32_t) + sample.is_target.size() + sample.origin.size();
  for (const auto& [name, value] : sample.fields) bytes += 64 + name.size() + value.size();
  return static_cast<int64_t>(bytes);
}

}  // namespace

SampleCache::SampleCache(std::shared_ptr<const Dataset> dataset, int64_t limit_bytes)
    : dataset_(std::move(dataset)), lengths_(static_cast<size_t>(dataset_->size()), -1), limit_bytes_(limit_bytes) {}

int64_t SampleCache::length(int64_t row) {
  int32_t& known = lengths_[static_cast<size_t>(row)];
  if (known < 0) {
    const std::optional<Sample> sample = read(row);
    known = sample ? static_cast<int32_t>(sample->input_ids.size()) : 0;
  }
  return known;
}

Sample SampleCache::sample(int64_t row) {
  if (const auto place = places_.find(row); place != places_.end()) {
    recent_.splice(recent_.begin(), recent_, place->second);
    return place->second->second;
  }
  std::optional<Sample> sample = read(row);
  RETORT_CHECK(sample.has_value()) << "row " << row << " was good before";
  return std::move(*sample);
}

std::optional<Sample> SampleCache::read(int64_t row) {
  std::optional<Sample> sample = dataset_->get(row);
  if (sample) keep(row, *sample);
  return sample;
}

void SampleCache::keep(int64_t row, const Sample& sample) {
  const int64_t bytes = bytes_of(sample);
  if (bytes > limit_bytes_ || places_.contains(row)) return;
  while (used_bytes_ + bytes > limit_bytes_) {
    used_bytes_ -= bytes_of(recent_.back().second);
    places_.erase(recent_.back().first);
    recent_.pop_back();
  }
  recent_.emplace_front(row, sample);
  places_.emplace(row, recent_.begin());
  used_bytes_ += bytes;
}

}  // namespace retort::data::detail

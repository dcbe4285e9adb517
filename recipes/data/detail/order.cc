#include "recipes/data/detail/order.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace retort::data::detail {
namespace {
constexpr uint64_t kWeightDraw = 0x77656967687473;  // keeps the draws apart from the shuffle's
}

std::vector<SourceShape> source_shapes(const RowSet& rows) {
  std::vector<SourceShape> sources;
  for (int64_t i = 0; i < rows.num_sources(); ++i)
    sources.push_back({rows.source_size(i), rows.source_weight(i)});
  return sources;
}

EpochOrder::EpochOrder(const std::vector<SourceShape>& sources, uint64_t seed, int64_t epoch,
                       bool shuffle)
    : shuffle_(shuffle), permutation_(1, seed, 0) {
  RETORT_CHECK(!sources.empty());
  double smallest = sources.front().weight;
  for (const SourceShape& source : sources)
    smallest = std::min(smallest, source.weight);

  int64_t first_row = 0;
  for (const SourceShape& source : sources) {
    const double times = source.weight / smallest;
    const double whole = std::floor(times);
    Segment segment{size_, 0, first_row, source.rows, source.rows * static_cast<int64_t>(whole),
                    {}};
    // The fractional part of a weight gives a row one more turn or not, drawn for each row and
    // epoch, so that every rank and every resumed run finds the same.
    if (const double rest = times - whole; rest > 0)
      for (int64_t row = first_row; row < first_row + source.rows; ++row)
        if (random_uniform(seed, kWeightDraw, static_cast<uint64_t>(epoch),
                           static_cast<uint64_t>(row)) < rest)
          segment.extra.push_back(row);

    size_ += segment.full + static_cast<int64_t>(segment.extra.size());
    segment.end = size_;
    first_row += source.rows;
    segments_.push_back(std::move(segment));
  }
  permutation_ = Permutation(static_cast<uint64_t>(size_), seed, static_cast<uint64_t>(epoch));
}

int64_t EpochOrder::row(int64_t index) const {
  RETORT_CHECK(index >= 0 && index < size_) << "place " << index << " of " << size_;
  const int64_t place =
      shuffle_ ? static_cast<int64_t>(permutation_(static_cast<uint64_t>(index))) : index;
  const auto segment = std::upper_bound(segments_.begin(), segments_.end(), place,
                                        [](int64_t at, const Segment& s) { return at < s.end; });
  const int64_t inside = place - segment->begin;
  if (inside >= segment->full) return segment->extra[static_cast<size_t>(inside - segment->full)];
  return segment->first_row + inside % segment->rows;
}

}  // namespace retort::data::detail

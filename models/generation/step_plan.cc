#include "models/generation/step_plan.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "parallel/staged_copy.h"

namespace retort::models {
namespace {

using at::Tensor;
using PartKind = StepPart::Kind;

// In which order spans of the three sorts stand.
int place_in_step(const StepSpan& span) {
  if (span.count == 1) return 0;
  return span.first_position == 0 ? 1 : 2;
}

PartKind kind_of_span(const StepSpan& span, int64_t max_decoded) {
  if (span.count == 1) return max_decoded > 0 ? PartKind::kDecoded : PartKind::kGathered;
  return span.first_position == 0 ? PartKind::kPacked : PartKind::kGathered;
}

}  // namespace

StepPlan::StepPlan(const std::vector<int32_t>& ids, const std::vector<StepSpan>& spans,
                   int64_t block_tokens, int64_t max_decoded)
    : block_tokens_(block_tokens), max_decoded_(max_decoded), rows_(std::ssize(ids)) {
  std::vector<size_t> order(spans.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return place_in_step(spans[i]); });

  // The ids come first, so that the next one's place is the next row.
  std::vector<StepSpan> ordered;
  std::vector<int64_t> first_rows(spans.size());
  for (const size_t i : order) {
    first_rows[i] = std::ssize(numbers_);
    const auto first_id = ids.begin() + spans[i].first_row;
    numbers_.insert(numbers_.end(), first_id, first_id + spans[i].count);
    ordered.push_back(spans[i]);
    ordered.back().first_row = first_rows[i];
  }
  RETORT_CHECK(std::ssize(numbers_) == rows_) << "rows of a step that belong to no span";

  add_rows(ordered);
  for (size_t i = 0; i < spans.size(); ++i) {
    if (!spans[i].last) continue;
    numbers_.push_back(first_rows[i] + spans[i].count - 1);
    ++last_rows_;
  }
  add_parts(ordered);
}

int64_t StepPlan::slot(const StepSpan& span, int64_t position) const {
  return span.table[position / block_tokens_] * block_tokens_ + position % block_tokens_;
}

void StepPlan::add_rows(const std::vector<StepSpan>& spans) {
  for (const StepSpan& span : spans)
    for (int64_t i = 0; i < span.count; ++i)
      numbers_.push_back(span.first_position + i);
  for (const StepSpan& span : spans)
    for (int64_t i = 0; i < span.count; ++i)
      numbers_.push_back(slot(span, span.first_position + i));
}

// Tells whether a span may stand in one part with those before it. Longer spans that are gathered
// have a part each, because their queries differ in shape.
bool StepPlan::joins(std::span<const StepSpan> part, const StepSpan& next) const {
  if (place_in_step(part.front()) != place_in_step(next)) return false;
  switch (kind_of_span(next, max_decoded_)) {
    case PartKind::kDecoded: return std::ssize(part) < max_decoded_;
    case PartKind::kPacked: return true;
    case PartKind::kGathered: return next.count == 1;
  }
  return false;
}

void StepPlan::add_parts(std::span<const StepSpan> spans) {
  for (size_t begin = 0; begin < spans.size();) {
    size_t end = begin + 1;
    while (end < spans.size() && joins(spans.subspan(begin, end - begin), spans[end]))
      ++end;
    add_part(spans.subspan(begin, end - begin));
    begin = end;
  }
}

void StepPlan::add_part(std::span<const StepSpan> spans) {
  StepPart part{.kind = kind_of_span(spans.front(), max_decoded_),
                .first_row = spans.front().first_row,
                .sequences = std::ssize(spans),
                .queries = spans.front().count};
  for (const StepSpan& span : spans)
    part.keys = std::max(part.keys, span.first_position + span.count);

  switch (part.kind) {
    case PartKind::kDecoded: add_tables(spans, blocks_of(part.keys)); break;
    case PartKind::kGathered: add_slots(spans, part.keys); break;
    case PartKind::kPacked:
      part.offsets.push_back(0);
      for (const StepSpan& span : spans)
        part.offsets.push_back(part.offsets.back() + span.count);
      add_ints({part.offsets.begin(), part.offsets.end()});
      break;
  }
  parts_.push_back(std::move(part));
}

void StepPlan::add_ints(const std::vector<int32_t>& ints) {
  const size_t begin = numbers_.size();
  numbers_.resize(begin + (ints.size() + 1) / 2);
  std::memcpy(numbers_.data() + begin, ints.data(), ints.size() * sizeof(int32_t));
}

// The blocks behind the last one of a sequence are never looked at.
void StepPlan::add_tables(std::span<const StepSpan> spans, int64_t blocks) {
  std::vector<int32_t> ints;
  for (const StepSpan& span : spans) {
    const int64_t own = blocks_of(span.first_position + 1);
    ints.insert(ints.end(), span.table, span.table + own);
    ints.insert(ints.end(), static_cast<size_t>(blocks - own), 0);
  }
  for (const StepSpan& span : spans)
    ints.push_back(static_cast<int32_t>(span.first_position + 1));
  add_ints(ints);
}

// A sequence that is shorter than the longest repeats the slot of its first key for what it lacks;
// the mask hides those.
void StepPlan::add_slots(std::span<const StepSpan> spans, int64_t keys) {
  for (const StepSpan& span : spans)
    for (int64_t key = 0; key < keys; ++key)
      numbers_.push_back(slot(span, key < span.first_position + span.count ? key : 0));
}

void StepPlan::send(at::Device device) {
  all_ = parallel::staged_to(device,
                             at::from_blob(numbers_.data(), {std::ssize(numbers_)}, at::kLong));
}

// All rows are asked for only where each is a span by itself, and then they are in their order.
Tensor StepPlan::last_rows() const {
  return last_rows_ == rows_ ? Tensor() : all_.narrow(0, 3 * rows_, last_rows_);
}

std::vector<StepPart> StepPlan::parts() const {
  int64_t at = 3 * rows_ + last_rows_;
  const auto next = [&](int64_t count) {
    at += count;
    return all_.narrow(0, at - count, count);
  };
  const auto next_ints = [&](int64_t count) {
    return next((count + 1) / 2).view(at::kInt).narrow(0, 0, count);
  };

  // In the order in which add_part() appended what each has.
  std::vector<StepPart> parts = parts_;
  for (StepPart& part : parts) {
    const int64_t blocks = blocks_of(part.keys);
    switch (part.kind) {
      case PartKind::kDecoded: {
        const Tensor ints = next_ints(part.sequences * (blocks + 1));
        part.tables = ints.narrow(0, 0, part.sequences * blocks).view({part.sequences, blocks});
        part.lengths = ints.narrow(0, part.sequences * blocks, part.sequences);
        break;
      }
      case PartKind::kPacked: part.offsets_there = next_ints(part.sequences + 1); break;
      case PartKind::kGathered:
        part.positions =
            positions().narrow(0, part.first_row, part.rows()).view({part.sequences, part.queries});
        part.slots = next(part.sequences * part.keys);
        break;
    }
  }
  return parts;
}

}  // namespace retort::models

// How the rows of one step on a device attend, and the index numbers of the step, which all go
// there in one copy. Private to models/.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "models/generation/step_model.h"
#include "models/ops/attention_plan.h"

namespace retort::models {

// Neighbouring rows that attend alike, of B sequences.
struct StepPart {
  enum class Kind {
    kDecoded,   // a row each, whose keys are read in their blocks (paged_decode.h)
    kPacked,    // the beginnings of sequences, whose keys are all computed in this very step
    kGathered,  // C rows each, whose keys and values are gathered from their blocks: L for each
  };
  int64_t rows() const { return kind == Kind::kPacked ? offsets.back() : sequences * queries; }

  Kind kind = Kind::kGathered;
  int64_t first_row = 0;
  int64_t sequences = 0;  // B
  int64_t queries = 0;    // C
  int64_t keys = 0;       // L, or where none are gathered those of the longest sequence
  // Decoded: as PagedSequences has them.
  at::Tensor tables = {}, lengths = {};
  // Packed: [B + 1], the rows from which on each sequence stands, from the part's first row, and as
  // int32 on the device; plans by window.
  std::vector<int64_t> offsets = {};
  at::Tensor offsets_there = {};
  std::map<int64_t, AttentionPlanPtr> plans = {};
  // Gathered: [B, C]; [B * L] of keys and values, of which a shorter sequence repeats its first;
  // by window [B, 1, C, L], true where a key is seen.
  at::Tensor positions = {};
  at::Tensor slots = {};
  std::map<int64_t, at::Tensor> masks = {};
};

// Puts the spans of a step in an order in which those that attend alike are neighbours: first those
// of one row, then beginnings of sequences, then others. So rows have other numbers than those of
// the spans: `ids` are in the plan's order. The rows whose states are asked for keep the order of
// their spans.
class StepPlan {
 public:
  // Spans of one row are decoded from their blocks if `max_decoded` is above 0, at most so many in
  // a part. All rows belong to spans.
  StepPlan(const std::vector<int32_t>& ids, const std::vector<StepSpan>& spans,
           int64_t block_tokens, int64_t max_decoded);

  // Copies the numbers, for which the host does not wait. The tensors below are views of what was
  // copied, or where the device is the CPU of the plan's own memory.
  void send(at::Device device);
  at::Tensor ids() const { return all_.narrow(0, 0, rows_); }
  at::Tensor positions() const { return all_.narrow(0, rows_, rows_); }
  // Where the new keys and values go.
  at::Tensor slots() const { return all_.narrow(0, 2 * rows_, rows_); }
  // The rows whose states are asked for; undefined where these are all, in their order.
  at::Tensor last_rows() const;
  std::vector<StepPart> parts() const;

 private:
  int64_t blocks_of(int64_t tokens) const { return (tokens + block_tokens_ - 1) / block_tokens_; }
  int64_t slot(const StepSpan& span, int64_t position) const;
  bool joins(std::span<const StepSpan> part, const StepSpan& next) const;
  void add_rows(const std::vector<StepSpan>& spans);
  void add_parts(std::span<const StepSpan> spans);
  void add_part(std::span<const StepSpan> spans);
  void add_ints(const std::vector<int32_t>& ints);
  void add_tables(std::span<const StepSpan> spans, int64_t blocks);
  void add_slots(std::span<const StepSpan> spans, int64_t keys);

  int64_t block_tokens_, max_decoded_, rows_;
  int64_t last_rows_ = 0;
  // Ids, positions and slots of all rows, the rows whose states are asked for, then what the parts
  // have of their own. Numbers of 32 bits lie there in pairs.
  std::vector<int64_t> numbers_;
  std::vector<StepPart> parts_;  // without what is on the device
  at::Tensor all_;
};

}  // namespace retort::models

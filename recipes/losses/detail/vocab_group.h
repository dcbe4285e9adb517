// This rank's columns of a vocabulary, and the few numbers of a row that the ranks put together. A
// whole vocabulary is a group of one, which reduces nothing.
//
// Collectives: every rank of a split vocabulary makes the same calls in the same order.
// Threads: compute alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "parallel/vocab_shard.h"

namespace retort::losses::detail {

class VocabGroup {
 public:
  // kInvalidArgument unless the `rows` rows of this rank's weight are [begin, begin + rows) as
  // VocabShard lays them out.
  VocabGroup(const parallel::VocabShard& vocab, int64_t rows);

  bool split() const { return group_ != nullptr; }
  int64_t begin() const { return begin_; }
  int64_t rows() const { return rows_; }
  int64_t total() const { return total_; }
  int64_t rows_per_rank() const;           // the most that a rank holds: what sizes are chosen by
  int64_t own_below(int64_t limit) const;  // how many of this rank's ids are < limit
  at::Tensor gather(int64_t mine) const;   // [ranks] int64 on the CPU. One all-gather of 8 bytes
  int64_t rows_of(int64_t rank) const;     // rows that a rank holds
  int64_t begin_of(int64_t rank) const;
  // [n, total()] contiguous of every rank's [n, rows()] columns, the same on each; not split: the
  // argument. One all-gather of n * rows_per_rank() elements (none if not split).
  at::Tensor whole_rows(const at::Tensor& own) const;

  // Each column, [n] float32, becomes its maximum over the ranks. One all-reduce (none if not
  // split).
  void max(const std::vector<at::Tensor*>& columns) const;
  // Each column, [n] or [n, k] of a float dtype, becomes its sum over the ranks in float64, the
  // same bits on each. One all-reduce (none if not split).
  void sum(const std::vector<at::Tensor*>& columns) const;

 private:
  void reduce(const std::vector<at::Tensor*>& columns, parallel::ReduceOp op) const;

  parallel::Group* group_;  // null if not split
  int64_t begin_, rows_, total_;
};

// Returns how many ids the vocabulary has, of which the weight (maybe not yet checked) is a part.
int64_t vocab_total(const parallel::VocabShard& vocab, const at::Tensor& weight);

// True if the row kernels can read it; an undefined tensor is left to check_head.
inline bool on_cpu(const at::Tensor& tensor) {
  return !tensor.defined() || tensor.device().is_cpu();
}

// Runs `checks`; the ranks of a split vocabulary then vote (parallel/vote.h), so that what one of
// them finds is thrown on all and none waits in a collective for a rank that has left. One
// all-reduce of 8 bytes when all is well.
void check_together(const parallel::VocabShard& vocab, const std::function<void()>& checks);

// Rows formed at once by the ATen path: as chunk_rows, with a budget that fills an accelerator.
int64_t aten_chunk_rows(int64_t asked, int64_t floats_per_row, const at::Device& device);

}  // namespace retort::losses::detail

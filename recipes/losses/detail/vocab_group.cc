#include "recipes/losses/detail/vocab_group.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "base/error.h"
#include "parallel/vote.h"
#include "recipes/losses/detail/linear_head.h"

namespace retort::losses::detail {

VocabGroup::VocabGroup(const parallel::VocabShard& vocab, int64_t rows)
    : group_(vocab.whole() ? nullptr : vocab.group),
      begin_(vocab.begin),
      rows_(rows),
      total_(vocab.total > 0 ? vocab.total : rows) {
  const int64_t rank = group_ ? group_->rank() : 0;
  const bool known = !split() || vocab.total > 0;
  if (known && begin_ == begin_of(rank) && rows_ == rows_of(rank)) return;
  throw Error(ErrorCode::kInvalidArgument,
              "the weight's rows are not this rank's part of the vocabulary: rank r of n holds [r "
              "* m, (r + 1) * m) with m = "
              "ceil(total / n)")
      .with("rank", rank)
      .with("begin", begin_)
      .with("rows", rows_)
      .with("total", vocab.total);
}

int64_t VocabGroup::rows_per_rank() const { return rows_of(0); }

int64_t VocabGroup::own_below(int64_t limit) const {
  return std::clamp<int64_t>(limit - begin_, 0, rows_);
}

int64_t VocabGroup::begin_of(int64_t rank) const {
  return split() ? parallel::vocab_begin(total_, group_->size(), rank) : 0;
}

int64_t VocabGroup::rows_of(int64_t rank) const {
  return split() ? parallel::vocab_end(total_, group_->size(), rank) - begin_of(rank) : total_;
}

at::Tensor VocabGroup::gather(int64_t mine) const {
  const at::Tensor own = at::full({1}, mine, at::kLong);
  return split() ? group_->all_gather(own).flatten() : own;
}

at::Tensor VocabGroup::whole_rows(const at::Tensor& own) const {
  if (!split()) return own;
  // Every rank sends as much as the fullest one. Ranks are full up to the last ids, so that what
  // was filled up stands behind all of them.
  const int64_t count = own.size(0), part = rows_per_rank(), ranks = group_->size();
  at::Tensor mine = at::zeros({count, part}, own.options());
  mine.narrow(1, 0, rows_).copy_(own);
  at::Tensor all = at::empty({ranks * count * part}, own.options());
  group_->all_gather_into(all, mine.view({-1}));
  return all.view({ranks, count, part})
      .transpose(0, 1)
      .reshape({count, ranks * part})
      .narrow(1, 0, total_)
      .contiguous();
}

void VocabGroup::reduce(const std::vector<at::Tensor*>& columns, parallel::ReduceOp op) const {
  if (!split() || columns.empty()) return;
  // All columns travel in one message, because every all-reduce costs a round trip between the
  // ranks. It is formed where they are: on a device the host does not wait for it.
  std::vector<at::Tensor> parts;
  for (const at::Tensor* column : columns)
    parts.push_back(column->reshape({-1}));
  at::Tensor all = at::cat(parts);
  group_->all_reduce(all, op);
  int64_t begin = 0;
  for (at::Tensor* column : columns) {
    const int64_t size = column->numel();
    *column = all.narrow(0, begin, size).view(column->sizes());
    begin += size;
  }
}

void VocabGroup::max(const std::vector<at::Tensor*>& columns) const {
  reduce(columns, parallel::ReduceOp::kMax);
}

void VocabGroup::sum(const std::vector<at::Tensor*>& columns) const {
  for (at::Tensor* column : columns)
    *column = column->to(at::kDouble);
  reduce(columns, parallel::ReduceOp::kSum);
}

int64_t vocab_total(const parallel::VocabShard& vocab, const at::Tensor& weight) {
  if (vocab.total > 0) return vocab.total;
  return weight.defined() && weight.dim() > 0 ? weight.size(0) : 0;
}

void check_together(const parallel::VocabShard& vocab, const std::function<void()>& checks) {
  if (vocab.whole()) return checks();
  parallel::run_on_all(*vocab.group, checks);
}

int64_t aten_chunk_rows(int64_t asked, int64_t floats_per_row, const at::Device& device) {
  constexpr int64_t kHostBytes = 16 << 20, kDeviceBytes = 512 << 20;
  return chunk_rows(asked, floats_per_row, device.is_cpu() ? kHostBytes : kDeviceBytes);
}

}  // namespace retort::losses::detail

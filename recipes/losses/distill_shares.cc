#include "recipes/losses/distill_shares.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "recipes/losses/detail/aten_losses.h"
#include "recipes/losses/detail/distill_chunks.h"
#include "recipes/losses/detail/linear_head.h"
#include "recipes/losses/detail/vocab_group.h"
#include "recipes/losses/linear_distill.h"

namespace retort::losses {
namespace {

DivergenceOptions options_of(const TeacherShare& share, DivergenceOptions options) {
  options.common_vocab = share.common_vocab;
  return options;
}

at::Tensor rows_of(const TeacherShare& share, const at::Tensor& all) {
  return share.rows.defined() ? all.index_select(0, detail::moved_to(all.device(), share.rows))
                              : all;
}

// kInvalidArgument unless they are rows of the `count`, ascending, on the host.
void check_rows(const TeacherShare& share, int64_t count) {
  if (!share.rows.defined()) return;
  bool fits = share.rows.is_cpu() && share.rows.dim() == 1 &&
              share.rows.scalar_type() == at::kLong && share.rows.is_contiguous();
  const int64_t* rows = fits ? share.rows.const_data_ptr<int64_t>() : nullptr;
  for (int64_t i = 0; fits && i < share.rows.numel(); ++i)
    fits = rows[i] < count && rows[i] > (i == 0 ? -1 : rows[i - 1]);
  if (!fits)
    throw Error(ErrorCode::kInvalidArgument,
                "a teacher's rows must be int64 on the host, ascending, each below " +
                    std::to_string(count));
}

// Compares each chunk of logits with all shares. A divergence writes its gradient over the logits
// that it was given, so each share gets a copy of its rows, and the gradients are added up with the
// shares' weights.
class ShareChunks : public detail::ChunkLoss {
 public:
  ShareChunks(const at::Tensor& targets, int64_t vocab, const std::vector<TeacherShare>& shares,
              const DivergenceOptions& options)
      : shares_(shares), vocab_(vocab) {
    for (const TeacherShare& share : shares)
      each_.emplace_back(rows_of(share, targets), vocab, share.signal, options_of(share, options));
  }

  void chunk(int64_t begin, int64_t count, at::Tensor logits, bool gradient) override {
    // A single teacher of all rows needs no copy: its gradient takes the place of the logits.
    if (in_place()) {
      each_[0].chunk(begin, count, logits, gradient);
      if (gradient && shares_[0].weight != 1) logits.mul_(shares_[0].weight);
      return;
    }

    const at::Tensor sum = gradient ? at::zeros_like(logits) : at::Tensor();
    for (size_t i = 0; i < shares_.size(); ++i) {
      const Range own = own_rows(i, begin, count);
      if (own.count == 0) continue;
      const at::Tensor own_logits =
          own.places.defined() ? logits.index_select(0, own.places) : logits.clone();
      each_[i].chunk(own.begin, own.count, own_logits, gradient);
      if (!gradient) continue;
      if (own.places.defined())
        sum.index_add_(0, own.places, own_logits, shares_[i].weight);
      else
        sum.add_(own_logits, shares_[i].weight);
    }
    if (gradient) logits.copy_(sum);
  }

  at::Tensor loss_sum() const override {
    at::Tensor sum = each_[0].loss_sum() * shares_[0].weight;
    for (size_t i = 1; i < each_.size(); ++i)
      sum = sum + each_[i].loss_sum() * shares_[i].weight;
    return sum;
  }
  at::Tensor numbers() const {
    std::vector<at::Tensor> all;
    for (const detail::DistillChunks& one : each_)
      all.push_back(one.numbers());
    return at::stack(all);
  }
  // The floats that a row needs, the student's logits included. Beside these stand a share's copy
  // and the sum of the gradients.
  int64_t floats_per_row() const {
    int64_t floats = in_place() ? vocab_ : 3 * vocab_;
    for (const detail::DistillChunks& one : each_)
      floats += one.floats_per_row();
    return floats;
  }
  bool in_place() const { return shares_.size() == 1 && !shares_[0].rows.defined(); }

 private:
  // A share's rows within a chunk are [begin, begin + count) of its own, because both ascend. They
  // stand at `places` of the chunk (undefined: at all of it).
  struct Range {
    int64_t begin = 0, count = 0;
    at::Tensor places;
  };

  Range own_rows(size_t i, int64_t begin, int64_t count) const {
    const at::Tensor& rows = shares_[i].rows;
    if (!rows.defined()) return {begin, count, {}};
    const int64_t* first = rows.const_data_ptr<int64_t>();
    const int64_t* last = first + rows.numel();
    const int64_t* from = std::lower_bound(first, last, begin);
    const int64_t* to = std::lower_bound(from, last, begin + count);
    return {from - first, to - from, rows.narrow(0, from - first, to - from) - begin};
  }

  const std::vector<TeacherShare>& shares_;
  int64_t vocab_;
  std::vector<detail::DistillChunks> each_;
};

// Runs the whole pass over the head once for each share: the ATen path takes one teacher at a time.
UnreadShares one_by_one(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                        const at::Tensor& targets, const std::vector<TeacherShare>& shares,
                        const DivergenceOptions& options, const parallel::VocabShard& vocab,
                        double softcap) {
  at::Tensor sum;
  std::vector<at::Tensor> numbers;
  for (const TeacherShare& share : shares) {
    const UnreadDistill one =
        unread_distill(rows_of(share, hidden), weight, bias, rows_of(share, targets), share.signal,
                       options_of(share, options), vocab, softcap);
    const at::Tensor loss = one.loss_sum * share.weight;
    sum = sum.defined() ? sum + loss : loss;
    numbers.push_back(one.numbers);
  }
  return {.loss_sum = sum, .numbers = at::stack(numbers)};
}

}  // namespace

UnreadShares unread_distill_shares(const at::Tensor& hidden, const at::Tensor& weight,
                                   const at::Tensor& bias, const at::Tensor& targets,
                                   const std::vector<TeacherShare>& shares,
                                   const DivergenceOptions& options,
                                   const parallel::VocabShard& vocab, double softcap) {
  if (shares.empty())
    throw Error(ErrorCode::kInvalidArgument, "a loss against teachers needs at least one");
  for (const TeacherShare& share : shares)
    check_rows(share, hidden.size(0));
  // One pass for all shares is for the row kernels: whole vocabularies on the CPU.
  if (!vocab.whole() || !detail::on_cpu(hidden))
    return one_by_one(hidden, weight, bias, targets, shares, options, vocab, softcap);

  const detail::LinearHead head{hidden, weight, bias, softcap};
  options.validate();
  detail::check_head(head, targets, detail::vocab_total(vocab, weight));
  ShareChunks chunks(targets, head.vocab(), shares, options);
  const int64_t rows_at_once =
      chunks.in_place()
          ? detail::chunk_rows(options.chunk_tokens, chunks.floats_per_row())
          : detail::chunk_rows(options.chunk_tokens, chunks.floats_per_row(), kSharesChunkBytes);
  const at::Tensor loss_sum = detail::run_linear_head(head, rows_at_once, chunks);
  return {.loss_sum = loss_sum, .numbers = chunks.numbers()};
}

}  // namespace retort::losses

#include "roles/payload/sharded.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"
#include "roles/payload/draws.h"
#include "roles/payload/head_logits.h"
#include "roles/payload/named_ids.h"
#include "roles/payload/top_k.h"

namespace retort::roles {
namespace {

// One chunk of rows: this rank's logits of the ids that count, which may be on a device, and what
// all ranks know of the chunk, in host memory.
class Chunk {
 public:
  // `logits` [count, rows of this rank]; the first `common` of them are ids below the common
  // vocabulary.
  Chunk(at::Tensor logits, int64_t common, const parallel::VocabShard& vocab)
      : counted_(logits.narrow(1, 0, common)),
        masked_(logits.narrow(1, common, logits.size(1) - common)),
        vocab_(vocab) {}

  int64_t count() const { return counted_.size(0); }
  const at::Tensor& log_total() const { return log_total_; }  // [count]
  const at::Tensor& at_targets() const { return at_targets_; }
  const at::Tensor& ids() const { return ids_; }  // [count, k] int32
  const at::Tensor& values() const { return values_; }

  // Gathers from each rank what all need of the chunk, in one message. `targets` [count] and
  // `named` [count, n] may be undefined.
  void exchange(const at::Tensor& targets, int64_t k, const at::Tensor& named, int64_t width) {
    const int64_t n = named.defined() ? named.size(1) : 0;
    const at::Tensor mine = at::full({count(), 3 + 2 * k + n}, kNegInf, at::kFloat);
    mine.select(1, 0).copy_(log_sum(counted_));
    mine.select(1, 1).copy_(log_sum(masked_));
    if (targets.defined()) mine.select(1, 2).copy_(own_at(targets.unsqueeze(1)).squeeze(1));
    if (k > 0) put_candidates(mine, k);
    if (n > 0) mine.narrow(1, 3 + 2 * k, n).copy_(own_at(named));
    const at::Tensor all = vocab_.group->all_gather(mine);  // [ranks, count, 3 + 2 k + n]
    log_total_ = at::logsumexp(all.select(2, 0), 0);
    log_masked_ = at::logsumexp(all.select(2, 1), 0);
    at_targets_ = at::amax(all.select(2, 2), 0);
    if (k > 0) merge(all, k);
    if (n > 0) add_named(named, at::amax(all.narrow(2, 3 + 2 * k, n), 0), width);
  }

  double masked_mass() const {
    const at::Tensor both = at::logaddexp(log_total_, log_masked_);
    return at::exp(log_masked_ - both).sum().item<double>();
  }

  // The log-probabilities of this rank's ids, on the device of its logits. Destroys the logits.
  at::Tensor log_probs() { return counted_.sub_(log_total_.to(counted_.device()).unsqueeze(1)); }

  // The log of the mass that the chosen ids leave. It is summed over the other ids, as a difference
  // from 1 would lose every digit of a small tail. Destroys the logits. One all-gather.
  at::Tensor log_tail() {
    const int32_t* id = ids_.const_data_ptr<int32_t>();
    std::vector<int64_t> rows, columns;
    for (int64_t i = 0; i < ids_.numel(); ++i) {
      const int64_t column = id[i] - vocab_.begin;
      if (column < 0 || column >= counted_.size(1)) continue;
      rows.push_back(i / ids_.size(1));
      columns.push_back(column);
    }
    const auto there = [&](const std::vector<int64_t>& numbers) {
      return at::tensor(numbers, at::kLong).to(counted_.device());
    };
    if (!rows.empty())
      counted_.index_put_({there(rows), there(columns)}, at::full({}, kNegInf, counted_.options()));
    return at::logsumexp(vocab_.group->all_gather(log_sum(counted_).to(at::kCPU)), 0) - log_total_;
  }

 private:
  static at::Tensor log_sum(const at::Tensor& columns) {
    return columns.size(1) == 0 ? at::full({columns.size(0)}, kNegInf, columns.options())
                                : at::logsumexp(columns, 1);
  }
  // The logit of each id [count, n] that is one of this rank's, -inf elsewhere.
  at::Tensor own_at(const at::Tensor& ids) const {
    const int64_t own = counted_.size(1);
    if (own == 0) return at::full(ids.sizes(), kNegInf, counted_.options());
    const at::Tensor column = ids - vocab_.begin;
    const at::Tensor values = counted_.gather(1, column.clamp(0, own - 1));
    return at::where(column.ge(0).logical_and(column.lt(own)), values,
                     at::full_like(values, kNegInf));
  }
  // Writes this rank's best k: values, then ids as the bits of int32, because a conversion to
  // float32 would round large ids. A rank with fewer than k pads.
  void put_candidates(const at::Tensor& mine, int64_t k) const {
    const int64_t own = std::min(k, counted_.size(1));
    const auto [values, columns] = top_k(counted_, own);
    const at::Tensor ids = at::full({count(), k}, std::numeric_limits<int32_t>::max(), at::kInt);
    ids.narrow(1, 0, own).copy_(columns + vocab_.begin);
    mine.narrow(1, 3, own).copy_(values);
    mine.narrow(1, 3 + k, k).copy_(ids.view(at::kFloat));
  }
  // Puts the student's ids behind the teacher's, if those are there.
  void add_named(const at::Tensor& named, const at::Tensor& values, int64_t width) {
    SupportRows rows{named.to(at::kCPU), values};
    if (ids_.defined()) rows = union_of({ids_.to(at::kLong), values_}, rows, width);
    ids_ = rows.ids.to(at::kInt).contiguous();
    values_ = rows.values;
  }
  // Merges the ranks' candidates, each already in order. Ranks hold rising ids, so of equal values
  // that of the lower rank comes first, as top_k() has it for a whole vocabulary.
  void merge(const at::Tensor& all, int64_t k) {
    const auto ranks = static_cast<size_t>(all.size(0));
    const int64_t width = all.size(2);
    values_ = at::empty({count(), k}, all.options());
    ids_ = at::empty({count(), k}, all.options().dtype(at::kInt));
    const float* data = all.const_data_ptr<float>();
    float* value = values_.mutable_data_ptr<float>();
    int32_t* id = ids_.mutable_data_ptr<int32_t>();
    std::vector<int64_t> next(ranks);
    for (int64_t r = 0; r < count(); ++r) {
      std::fill(next.begin(), next.end(), 0);
      const auto candidates = [&](size_t rank) {
        return data + (static_cast<int64_t>(rank) * count() + r) * width + 3;
      };
      for (int64_t i = 0; i < k; ++i) {
        size_t best = ranks;
        for (size_t rank = 0; rank < ranks; ++rank)
          if (next[rank] < k &&
              (best == ranks || candidates(rank)[next[rank]] > candidates(best)[next[best]]))
            best = rank;
        *value++ = candidates(best)[next[best]];
        std::memcpy(id++, candidates(best) + k + next[best]++, sizeof(int32_t));
      }
    }
  }

  at::Tensor counted_, masked_;
  const parallel::VocabShard& vocab_;
  at::Tensor log_total_, log_masked_, at_targets_, values_, ids_;
};

}  // namespace

Payload make_sharded_payload(const at::Tensor& hidden_rows, const at::Tensor& weight,
                             const PayloadSpec& spec, const at::Tensor& targets,
                             const parallel::VocabShard& vocab, double softcap,
                             const at::TensorOptions& floats) {
  c10::NoGradGuard no_grad;
  const int64_t rows = hidden_rows.size(0);
  const int64_t common = payload_vocab(spec, vocab.total);
  const int64_t own = std::clamp<int64_t>(common - vocab.begin, 0, weight.size(0));

  const bool masks = common < vocab.total;
  const int64_t width = ids_per_row(spec, common);
  // Draws and a student's support do without the teacher's most probable ids.
  const bool best = spec.kind == PayloadKind::kTopK && spec.support != Support::kStudent;
  const int64_t k = best ? std::min(spec.top_k, width) : 0;
  Payload payload = unfilled_payload(spec, rows, width, own, floats);
  const at::Tensor target_ids = targets_on(hidden_rows.device(), spec, targets, rows, common);
  const at::Tensor named = named_on(hidden_rows.device(), spec, targets, rows, common);
  const auto chunk_of = [](const at::Tensor& all, int64_t begin, int64_t count) {
    return all.defined() ? all.narrow(0, begin, count) : at::Tensor();
  };

  // Each rank forms the logits of its own rows of the head, for a chunk of positions at a time. All
  // ranks make the same chunks, because each has collectives.
  const HeadLogits head(hidden_rows, weight, softcap);
  const int64_t rows_at_once = rows_per_chunk(vocab.total, !hidden_rows.is_cpu());
  for (int64_t begin = 0; begin < rows; begin += rows_at_once) {
    const int64_t count = std::min(rows_at_once, rows - begin);
    at::Tensor logits = head.rows(begin, count);
    if (spec.temperature != 1.0) logits.div_(spec.temperature);
    Chunk chunk(logits, own, vocab);
    chunk.exchange(chunk_of(target_ids, begin, count), k, chunk_of(named, begin, count), width);

    at::Tensor out = payload.logps.narrow(0, begin, count);
    if (spec.kind == PayloadKind::kTargetLogProbs) {
      out.copy_(chunk.at_targets() - chunk.log_total());
      continue;
    }
    if (masks) payload.masked_mass_sum += chunk.masked_mass();
    if (spec.kind == PayloadKind::kFull) {
      out.copy_(chunk.log_probs());
      continue;
    }
    if (spec.kind == PayloadKind::kSampled) {
      check_drawable(chunk.log_total());
      draw_rows(chunk.log_probs().to(at::kCPU).contiguous(), spec, begin, payload, vocab);
      continue;
    }
    payload.ids.narrow(0, begin, count).copy_(chunk.ids());
    out.copy_(chunk.values() - chunk.log_total().unsqueeze(1));
    // With all common ids in the row there is no tail, which stays at log 0. A union may have room
    // for all of them and still list fewer.
    if (width < common || spec.support == Support::kUnion)
      payload.log_tail.narrow(0, begin, count).copy_(chunk.log_tail());
  }
  return payload;
}

}  // namespace retort::roles

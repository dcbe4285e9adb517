#include "recipes/losses/detail/uld_distance.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "recipes/losses/detail/linear_head.h"

namespace retort::losses::detail {
namespace {

// Below this a probability counts as this in the matched part, as in TRL.
constexpr double kLeastMatched = 1e-8;

class SortedUld : public UldDistance {
 public:
  UldRows rows(const ScaledRows& x, const ScaledRows& y, const at::Tensor& /*rest*/,
               at::Tensor slopes) const override {
    const at::Tensor total = sorted_distance(x, y, slopes);
    return {total, at::zeros_like(total), at::zeros_like(total)};
  }
};

// The teacher's K largest against the student's K largest, and the rest as one number: by the
// triangle inequality no more than the whole distance.
class BucketUld : public UldDistance {
 public:
  UldRows rows(const ScaledRows& x, const ScaledRows& y, const at::Tensor& rest,
               at::Tensor slopes) const override {
    const int64_t k = y.probabilities.size(1);
    const int64_t common = std::min(k, x.probabilities.size(1));
    auto [off, ids] = at::topk(x.probabilities, common);

    // The student's rest is summed over what is left of the row: one less the K largest would keep
    // no digit of a small rest.
    at::Tensor left = slopes.defined() ? slopes : at::empty_like(x.probabilities);
    left.copy_(x.probabilities).scatter_(1, ids, 0.0);
    const at::Tensor off_rest = left.sum(1) * x.scale - rest * y.scale;

    // Ids of the rest share the sign of the rest's difference.
    off.mul_(x.scale.unsqueeze(1));
    const at::Tensor other = y.probabilities * y.scale.unsqueeze(1);
    off.sub_(other.narrow(1, 0, common));
    const at::Tensor beyond = other.narrow(1, common, k - common).sum(1);
    const at::Tensor total = off.abs().sum(1).to(at::kDouble) + beyond + off_rest.abs();
    if (slopes.defined()) {
      slopes.copy_(off_rest.sign().unsqueeze(1).expand_as(slopes));
      slopes.scatter_(1, ids, off.sign());
    }
    return {total, at::zeros_like(total), at::zeros_like(total)};
  }
};

struct JsdRows {
  at::Tensor value;   // [n] float64
  at::Tensor slopes;  // [n, M] by x
};

// The generalised JSD of numbers that need not sum to 1, each at least kLeastMatched. At beta 0 and
// 1 it is the KL of one side from the other, not the limit.
JsdRows jsd_of_parts(const at::Tensor& x, const at::Tensor& y, double beta, bool gradient) {
  // Logarithms are of quotients, which keep the digits of two numbers that are nearly equal.
  const at::Tensor p = x.clamp_min(kLeastMatched), q = y.clamp_min(kLeastMatched);
  JsdRows rows;
  if (beta == 0) {
    rows.value = ((q / p).log_().mul_(q)).sum(1);
    if (gradient) rows.slopes = (q / p).neg_();
  } else if (beta == 1) {
    rows.slopes = (p / q).log_();
    rows.value = (rows.slopes * p).sum(1);
    rows.slopes.add_(1);
  } else {
    const at::Tensor mixture = (p * (1 - beta)).add_(q, beta);
    rows.slopes = (p / mixture).log_();
    rows.value = (rows.slopes * p).sum(1) * (1 - beta);
    rows.value.add_(((q / mixture).log_().mul_(q)).sum(1), beta);
    rows.slopes.mul_(1 - beta);
  }
  rows.value = rows.value.to(at::kDouble);
  if (gradient) rows.slopes.masked_fill_(x < kLeastMatched, 0);
  return rows;
}

class GoldUld : public UldDistance {
 public:
  struct Ids {
    at::Tensor matched, unmatched;  // int64 on the device
  };
  GoldUld(const MatchedIds& options, Ids student, Ids teacher)
      : matched_weight_(options.matched_weight),
        unmatched_weight_(options.unmatched_weight),
        beta_(options.beta),
        student_(std::move(student)),
        teacher_(std::move(teacher)) {}

  UldRows rows(const ScaledRows& x, const ScaledRows& y, const at::Tensor& /*rest*/,
               at::Tensor slopes) const override {
    const auto of_ids = [](const ScaledRows& side, const at::Tensor& ids) {
      return side.probabilities.index_select(1, ids);
    };
    const JsdRows matched = jsd_of_parts(of_ids(x, student_.matched).mul_(x.scale.unsqueeze(1)),
                                         of_ids(y, teacher_.matched).mul_(y.scale.unsqueeze(1)),
                                         beta_, slopes.defined());
    if (slopes.defined()) slopes.index_copy_(1, student_.matched, matched.slopes * matched_weight_);

    // TRL compares the unmatched ids only if both sides have some.
    at::Tensor unmatched = at::zeros_like(matched.value);
    if (student_.unmatched.numel() > 0 && teacher_.unmatched.numel() > 0) {
      const at::Tensor p = of_ids(x, student_.unmatched);
      const at::Tensor signs = slopes.defined() ? at::empty_like(p) : at::Tensor();
      unmatched = sorted_distance({p, x.scale}, {of_ids(y, teacher_.unmatched), y.scale}, signs);
      if (slopes.defined()) slopes.index_copy_(1, student_.unmatched, signs * unmatched_weight_);
    } else if (slopes.defined()) {
      slopes.index_fill_(1, student_.unmatched, 0);
    }
    return {matched.value * matched_weight_ + unmatched * unmatched_weight_, matched.value,
            unmatched};
  }

 private:
  double matched_weight_, unmatched_weight_, beta_;
  Ids student_, teacher_;
};

// The ids below `vocab` that are not among the matched ones, ascending.
GoldUld::Ids ids_of(const at::Tensor& matched, int64_t vocab, const at::Device& device) {
  at::Tensor is_unmatched = at::ones({vocab}, at::kBool);
  is_unmatched.index_fill_(0, matched, 0);
  return {moved_to(device, matched), moved_to(device, is_unmatched.nonzero().squeeze(1))};
}

void check_ids_of_side(const at::Tensor& ids, int64_t vocab, const char* side) {
  const at::Tensor flat = ids.contiguous();
  const int64_t* id = flat.const_data_ptr<int64_t>();
  std::vector<bool> seen(static_cast<size_t>(vocab));
  for (int64_t i = 0; i < flat.numel(); ++i) {
    const bool is_id = id[i] >= 0 && id[i] < vocab;
    if (is_id && !seen[static_cast<size_t>(id[i])]) {
      seen[static_cast<size_t>(id[i])] = true;
      continue;
    }
    throw Error(ErrorCode::kInvalidArgument, is_id ? "an id stands twice among the matched ids"
                                                   : "a matched id is no id of the vocabulary")
        .with("side", side)
        .with("id", id[i])
        .with("vocab", vocab);
  }
}

}  // namespace

std::unique_ptr<UldDistance> make_uld_distance(const UldOptions& options, int64_t vocab,
                                               int64_t teacher_ids, bool top_k,
                                               const at::Device& device) {
  if (options.matched)
    return std::make_unique<GoldUld>(*options.matched,
                                     ids_of(options.matched->student, vocab, device),
                                     ids_of(options.matched->teacher, teacher_ids, device));
  if (top_k) return std::make_unique<BucketUld>();
  return std::make_unique<SortedUld>();
}

void check_matched_ids(const UldOptions& options, int64_t vocab, int64_t teacher_ids) {
  if (!options.matched) return;
  check_ids_of_side(options.matched->student, vocab, "student");
  check_ids_of_side(options.matched->teacher, teacher_ids, "teacher");
}

}  // namespace retort::losses::detail

#include "roles/payload/named_ids.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "roles/payload/sharded.h"
#include "roles/payload/top_k.h"

namespace retort::roles {
namespace {

bool repeats_an_id(const at::Tensor& ids) {
  const int64_t k = ids.size(1);
  const at::Tensor sorted = std::get<0>(at::sort(ids, 1));
  return sorted.narrow(1, 0, k - 1).eq(sorted.narrow(1, 1, k - 1)).any().item<bool>();
}

// Marks which of `second` [n, m] stand in the same row of `first` [n, k]. After a stable sort of
// both together, an id of both has two places that follow each other, that of `second` behind.
// Memory: int64 [n, k + m] thrice.
at::Tensor known_to(const at::Tensor& first, const at::Tensor& second) {
  const int64_t all = first.size(1) + second.size(1);
  const auto [sorted, order] =
      at::sort(at::cat({first, second}, 1), /*stable=*/true, /*dim=*/1, /*descending=*/false);
  const at::Tensor repeats = sorted.narrow(1, 1, all - 1).eq(sorted.narrow(1, 0, all - 1));
  return at::zeros(sorted.sizes(), repeats.options())
      .scatter(1, order.narrow(1, 1, all - 1), repeats)
      .narrow(1, first.size(1), second.size(1));
}

}  // namespace

at::Tensor named_on(at::Device device, const PayloadSpec& spec, const at::Tensor& named,
                    int64_t rows, int64_t vocab) {
  if (!spec.names_ids()) return {};
  const int64_t k = std::min(spec.top_k, vocab);
  if (!named.defined() || named.sizes() != at::IntArrayRef({rows, k}))
    throw Error(ErrorCode::kInvalidArgument,
                "the student must name " + std::to_string(k) + " ids of each row");
  if (named.numel() > 0 && (named.min().item<int64_t>() < 0 ||
                            named.max().item<int64_t>() >= vocab || repeats_an_id(named)))
    throw Error(ErrorCode::kInvalidArgument, "ids that the student names must lie in [0, " +
                                                 std::to_string(vocab) +
                                                 "), which both know, each once in its row");
  return named.to(device, at::kLong);
}

SupportRows union_of(const SupportRows& first, const SupportRows& second, int64_t width) {
  const at::Tensor known = known_to(first.ids, second.ids);
  const at::Tensor ids = at::cat({first.ids, second.ids.masked_fill(known, -1)}, 1);
  const at::Tensor values = at::cat({first.values, second.values.masked_fill(known, kNegInf)}, 1);

  // Ids that are left out go to the end as -1; the others keep their order.
  const at::Tensor order =
      std::get<1>(at::sort(ids.lt(0).to(at::kInt), /*stable=*/true, /*dim=*/1, false))
          .narrow(1, 0, width);
  return {ids.gather(1, order), values.gather(1, order)};
}

SupportRows support_of(const at::Tensor& logits, const PayloadSpec& spec, const at::Tensor& named,
                       int64_t width) {
  const int64_t k = std::min({spec.top_k, width, logits.size(1)});
  const auto own = [&] {
    const auto [values, ids] = top_k(logits, k);
    return SupportRows{ids, values};
  };
  if (!named.defined()) return own();
  const SupportRows students{named, logits.gather(1, named)};
  return spec.support == Support::kUnion ? union_of(own(), students, width) : students;
}

at::Tensor stand_ins(const at::Tensor& ids) {
  return ids.size(1) == 0 ? ids : at::where(ids.lt(0), ids.narrow(1, 0, 1), ids);
}

void check_union(const Payload& payload, int64_t vocab_size) {
  const at::Tensor& ids = payload.ids;
  if (ids.numel() == 0) return;
  const int64_t width = ids.size(1);

  // -1 pads a row at its end, after at least one id, and has no probability. Anything else was
  // damaged on its way.
  const at::Tensor none = ids.eq(-1);
  const bool inside = ids.min().item<int64_t>() >= -1 && ids.max().item<int64_t>() < vocab_size &&
                      !none.select(1, 0).any().item<bool>();
  const bool ends = none.narrow(1, 0, width - 1)
                        .logical_and(none.narrow(1, 1, width - 1).logical_not())
                        .any()
                        .item<bool>();
  const bool empty =
      payload.logps.to(at::kFloat).masked_select(none).eq(kNegInf).all().item<bool>();
  if (!inside || ends || !empty)
    throw Error(ErrorCode::kCorrupt,
                "a row of a union has an id outside the vocabulary of " +
                    std::to_string(vocab_size) +
                    ", or -1 (no id) before an id or with a probability above zero")
        .with("teacher", payload.label.teacher);
}

}  // namespace retort::roles

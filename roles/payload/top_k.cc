#include "roles/payload/top_k.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/topk.h>

#include <algorithm>

#include "base/error.h"

namespace retort::roles {
namespace {

// The rows of a matrix in host memory, as order_ties asks for them.
class HostRows {
 public:
  explicit HostRows(const at::Tensor& values)
      : data_(values.const_data_ptr<float>()), values_(values) {}

  int64_t count(int64_t row, float value) const {
    return std::count(begin(row), begin(row) + values_.size(1), value);
  }
  void first_ids(int64_t row, float value, int64_t* ids, int64_t count) const {
    for (int64_t id = 0; count > 0; ++id)
      if (begin(row)[id] == value) {
        *ids++ = id;
        --count;
      }
  }

 private:
  const float* begin(int64_t row) const { return data_ + row * values_.stride(0); }

  const float* data_;
  at::Tensor values_;
};

// at::topk chooses and orders equal values as it likes, so ties are settled here: the lowest ids
// come first. `top` and `ids` are a row of its result in host memory.
void order_ties(const HostRows& rows, int64_t row, const float* top, int64_t* ids, int64_t k) {
  for (int64_t begin = 0; begin < k;) {
    int64_t end = begin + 1;
    while (end < k && top[end] == top[begin])
      ++end;
    // Only the last run of equal values may have been cut off by k; then the lowest ids of all that
    // are equal replace those that topk chose.
    if (end == k && rows.count(row, top[begin]) > end - begin)
      rows.first_ids(row, top[begin], ids + begin, end - begin);
    else
      std::sort(ids + begin, ids + end);
    begin = end;
  }
}

std::pair<at::Tensor, at::Tensor> host_top_k(const at::Tensor& values, int64_t k) {
  const auto [top, ids] = at::topk(values, k, 1, /*largest=*/true, /*sorted=*/true);
  const at::Tensor host_top = top.contiguous(), host_ids = ids.contiguous();
  const HostRows rows(values);
  for (int64_t r = 0; r < top.size(0); ++r)
    order_ties(rows, r, host_top.const_data_ptr<float>() + r * k,
               host_ids.mutable_data_ptr<int64_t>() + r * k, k);
  return {host_top, host_ids};
}

// Works by whole matrices, so that nothing comes to the host.
std::pair<at::Tensor, at::Tensor> device_top_k(const at::Tensor& values, int64_t k) {
  // All above a row's k-th value are taken, and of those that equal it the first that still fit.
  // NaN counts as the largest value, as in topk.
  const at::Tensor kth = std::get<0>(at::topk(values, k, 1)).narrow(1, k - 1, 1);
  const at::Tensor is_nan = values.isnan(), kth_is_nan = kth.isnan();
  const at::Tensor above = values.gt(kth).logical_or(is_nan.logical_and(kth_is_nan.logical_not()));
  const at::Tensor equal = values.eq(kth).logical_or(is_nan.logical_and(kth_is_nan));
  const at::Tensor room = above.sum(1, /*keepdim=*/true).neg().add(k);
  const at::Tensor taken = above.logical_or(equal.logical_and(equal.cumsum(1).le(room)));

  // Their ids rise along each row, and the sort keeps that order among equal values.
  const at::Tensor ids = at::nonzero(taken).select(1, 1).view({values.size(0), k});
  const auto [top, order] =
      at::sort(values.gather(1, ids), /*stable=*/true, /*dim=*/1, /*descending=*/true);
  return {top, ids.gather(1, order)};
}

}  // namespace

std::pair<at::Tensor, at::Tensor> top_k(const at::Tensor& values, int64_t k) {
  const int64_t rows = values.size(0), count = values.size(1);
  RETORT_CHECK(k >= 0 && k <= count && values.stride(1) == 1) << "top " << k << " of " << count;
  if (k == 0)
    return {at::empty({rows, 0}, values.options()),
            at::empty({rows, 0}, values.options().dtype(at::kLong))};
  return values.is_cpu() ? host_top_k(values, k) : device_top_k(values, k);
}

}  // namespace retort::roles

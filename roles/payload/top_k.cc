#include "roles/payload/top_k.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/topk.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/error.h"
#include "kernels/device_kernels.h"
#include "kernels/launch_shapes.h"

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

// What the kernel writes of R rows.
struct KernelRows {
  at::Tensor values, ids;         // [R, k]
  at::Tensor max, sum;            // [R] of exp(value - max)
  at::Tensor tail_max, tail_sum;  // likewise, of all values but the k
};

// `numbers`: with the sums; the tail's are left out where it is empty.
KernelRows kernel_rows(const at::Tensor& values, int64_t k, bool numbers) {
  const int64_t rows = values.size(0), width = values.size(1);
  const at::TensorOptions doubles = values.options().dtype(at::kDouble);
  KernelRows out{.values = at::empty({rows, k}, values.options()),
                 .ids = at::empty({rows, k}, values.options().dtype(at::kLong))};
  if (numbers) {
    out.max = at::empty({rows}, values.options());
    out.sum = at::empty({rows}, doubles);
  }
  if (numbers && k < width) {
    out.tail_max = at::empty({rows}, values.options());
    out.tail_sum = at::empty({rows}, doubles);
  }

  constexpr float kInverseTemperature = 1;
  using kernels::write_address;
  const int64_t threads =
      kernels::launch_shape(kernels::ShapedKernel::kTopK, values.device()).threads;
  kernels::launch_kernel(*kernels::device_kernels(values.device()), values.device(),
                         {.name = "retort_top_k_rows_f32", .grid_x = rows, .block = threads},
                         kernels::read_address(values), values.stride(0), width,
                         static_cast<int32_t>(k), kInverseTemperature, write_address(out.values),
                         write_address(out.ids), write_address(out.max), write_address(out.sum),
                         write_address(out.tail_max), write_address(out.tail_sum));
  return out;
}

// ATen's way. Works by whole matrices; the host waits for the number of ids that nonzero finds.
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
  if (values.is_cpu()) return host_top_k(values, k);
  if (!has_top_k_kernel(values, k)) return device_top_k(values, k);
  const KernelRows found = kernel_rows(values, k, /*numbers=*/false);
  return {found.values, found.ids};
}

bool has_top_k_kernel(const at::Tensor& values, int64_t k) {
  constexpr int64_t kMost = 1024;
  return kernels::device_kernels(values.device()) != nullptr &&
         values.scalar_type() == at::kFloat && k >= 1 && k <= kMost &&
         values.size(1) <= std::numeric_limits<int32_t>::max();
}

TopKLogProbs top_k_log_probs(const at::Tensor& logits, int64_t k) {
  RETORT_CHECK(has_top_k_kernel(logits, k) && k <= logits.size(1) && logits.stride(1) == 1)
      << "top " << k << " of " << logits.sizes();
  const KernelRows rows = kernel_rows(logits, k, /*numbers=*/true);

  // Differences from the row's maximum keep their digits, and logs of float64 sums add none.
  const at::Tensor log_sum = rows.sum.log();
  const at::Tensor log_probs = (rows.values - rows.max.unsqueeze(1)) - log_sum.unsqueeze(1);
  TopKLogProbs out{.ids = rows.ids,
                   .log_probs = log_probs.to(at::kFloat),
                   .log_total = (rows.max + log_sum).to(at::kFloat)};
  out.log_tail =
      rows.tail_max.defined()
          ? ((rows.tail_max - rows.max) + rows.tail_sum.log() - log_sum).to(at::kFloat)
          : at::full({logits.size(0)}, -std::numeric_limits<double>::infinity(), logits.options());
  return out;
}

}  // namespace retort::roles

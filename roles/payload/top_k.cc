#include "roles/payload/top_k.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/nonzero.h>
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

// The same of a matrix on a device: what is counted is each row's k-th value.
class DeviceRows {
 public:
  DeviceRows(const at::Tensor& values, const at::Tensor& top) : values_(values) {
    counts_ = (values == top.select(1, top.size(1) - 1).unsqueeze(1)).sum(1).to(at::kCPU);
    data_ = counts_.const_data_ptr<int64_t>();
  }

  int64_t count(int64_t row, float) const { return data_[row]; }
  void first_ids(int64_t row, float value, int64_t* ids, int64_t count) const {
    const at::Tensor places = at::nonzero(values_.select(0, row) == value)
                                  .select(1, 0)
                                  .narrow(0, 0, count)
                                  .to(at::kCPU)
                                  .contiguous();
    std::copy_n(places.const_data_ptr<int64_t>(), count, ids);
  }

 private:
  at::Tensor values_, counts_;
  const int64_t* data_;
};

// at::topk chooses and orders equal values as it likes. `top` and `ids` are a row of its result in
// host memory.
template <class Rows>
void order_ties(const Rows& rows, int64_t row, const float* top, int64_t* ids, int64_t k) {
  for (int64_t begin = 0; begin < k;) {
    int64_t end = begin + 1;
    while (end < k && top[end] == top[begin])
      ++end;
    if (end == k && rows.count(row, top[begin]) > end - begin)
      rows.first_ids(row, top[begin], ids + begin, end - begin);
    else
      std::sort(ids + begin, ids + end);
    begin = end;
  }
}

template <class Rows>
void order_ties(const Rows& rows, const at::Tensor& top, const at::Tensor& ids) {
  const int64_t k = top.size(1);
  for (int64_t r = 0; r < top.size(0); ++r)
    order_ties(rows, r, top.const_data_ptr<float>() + r * k,
               ids.mutable_data_ptr<int64_t>() + r * k, k);
}

}  // namespace

std::pair<at::Tensor, at::Tensor> top_k(const at::Tensor& values, int64_t k) {
  const int64_t rows = values.size(0), count = values.size(1);
  RETORT_CHECK(k >= 0 && k <= count && values.stride(1) == 1) << "top " << k << " of " << count;
  if (k == 0) return {at::empty({rows, 0}, at::kFloat), at::empty({rows, 0}, at::kLong)};
  auto [top, ids] = at::topk(values, k, 1, /*largest=*/true, /*sorted=*/true);
  const at::Tensor host_top = top.to(at::kCPU).contiguous(),
                   host_ids = ids.to(at::kCPU).contiguous();
  if (values.is_cpu())
    order_ties(HostRows(values), host_top, host_ids);
  else
    order_ties(DeviceRows(values, top), host_top, host_ids);
  return {host_top, host_ids};
}

}  // namespace retort::roles

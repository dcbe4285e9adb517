#include "roles/top_k.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/topk.h>

#include <algorithm>

#include "base/error.h"

namespace retort::roles {
namespace {

// at::topk chooses and orders equal values as it likes. `top` and `ids` are one row of its result, `all` the row it is of.
void order_ties(const float* all, int64_t count, const float* top, int64_t* ids, int64_t k) {
  for (int64_t begin = 0; begin < k;) {
    int64_t end = begin + 1;
    while (end < k && top[end] == top[begin]) ++end;
    if (end == k && std::count(all, all + count, top[begin]) > end - begin) {
      for (int64_t id = 0, place = begin; place < end; ++id)
        if (all[id] == top[begin]) ids[place++] = id;
    } else {
      std::sort(ids + begin, ids + end);
    }
    begin = end;
  }
}

}  // namespace

std::pair<at::Tensor, at::Tensor> top_k(const at::Tensor& values, int64_t k) {
  const int64_t rows = values.size(0), count = values.size(1);
  RETORT_CHECK(k >= 0 && k <= count && values.stride(1) == 1) << "top " << k << " of " << count;
  if (k == 0) return {at::empty({rows, 0}, values.options()), at::empty({rows, 0}, values.options().dtype(at::kLong))};
  auto [top, ids] = at::topk(values, k, 1, /*largest=*/true, /*sorted=*/true);
  top = top.contiguous();
  ids = ids.contiguous();
  for (int64_t r = 0; r < rows; ++r)
    order_ties(values.const_data_ptr<float>() + r * values.stride(0), count, top.const_data_ptr<float>() + r * k,
               ids.mutable_data_ptr<int64_t>() + r * k, k);
  return {top, ids};
}

}  // namespace retort::roles

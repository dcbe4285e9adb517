// The logits of a frozen model's hidden states, a chunk of rows at a time, in float32.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

namespace retort::roles {

// Rows of logits formed at once: about 16 MiB of float32, on a device 256, which has to be filled.
// A function of the vocabulary and of where it lies alone.
inline int64_t rows_per_chunk(int64_t vocab_rows, bool on_device) {
  const int64_t floats = on_device ? int64_t{64} << 20 : int64_t{4} << 20;
  return std::max<int64_t>(16, floats / vocab_rows);
}

// Products of float32, for which states and weight are converted; of bfloat16 states and weight on
// a device products of bfloat16 with float32 sums, which are the same but for the order of the
// sums. Then the weight is not copied.
class HeadLogits {
 public:
  // hidden [R, H], weight [V, H] of float dtypes on one device; softcap as models::Head's.
  HeadLogits(const at::Tensor& hidden, const at::Tensor& weight, double softcap);

  // [count, V] float32 of rows [begin, begin + count).
  at::Tensor rows(int64_t begin, int64_t count) const;

 private:
  bool in_bfloat16_;
  at::Tensor hidden_;
  at::Tensor weight_;  // [H, V] as a factor
  double softcap_;
};

}  // namespace retort::roles

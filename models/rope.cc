#include "models/rope.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/where.h>

#include <numbers>

namespace retort::models {

at::Tensor rope_inverse_frequencies(const Rope& rope, int64_t head_dim) {
  const at::Tensor exponents = at::arange(0, head_dim, 2, at::TensorOptions().dtype(at::kFloat)) /
                               static_cast<double>(head_dim);
  const at::Tensor frequencies = at::reciprocal(at::pow(at::Scalar(rope.theta), exponents));
  if (rope.type == "linear") return frequencies / rope.factor;
  if (rope.type != "llama3") return frequencies;

  // Llama 3: long wavelengths are slowed down by `factor`, short ones kept, those between are
  // interpolated.
  const auto context = static_cast<double>(rope.original_max_position_embeddings);
  const double longest_kept = context / rope.high_freq_factor;
  const double shortest_scaled = context / rope.low_freq_factor;
  const at::Tensor wavelength = at::reciprocal(frequencies) * (2.0 * std::numbers::pi);
  const at::Tensor scaled = frequencies / rope.factor;
  const at::Tensor smooth = (at::reciprocal(wavelength) * context - rope.low_freq_factor) /
                            (rope.high_freq_factor - rope.low_freq_factor);
  const at::Tensor between = (1.0 - smooth) * scaled + smooth * frequencies;
  const at::Tensor slowed = at::where(wavelength > shortest_scaled, scaled, frequencies);
  return at::where((wavelength >= longest_kept).logical_and(wavelength <= shortest_scaled), between,
                   slowed);
}

RopeTable rope_table(const at::Tensor& positions, const at::Tensor& inverse_frequencies) {
  const at::Tensor angles = at::outer(positions.to(at::kFloat), inverse_frequencies);
  return {at::cos(angles), at::sin(angles)};
}

at::Tensor rotate(const at::Tensor& x, const RopeTable& table) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor cos = table.cos.to(x.scalar_type()).unsqueeze(1);
  const at::Tensor sin = table.sin.to(x.scalar_type()).unsqueeze(1);
  const at::Tensor first = x.narrow(-1, 0, half);
  const at::Tensor second = x.narrow(-1, half, half);
  return at::cat({first * cos - second * sin, second * cos + first * sin}, -1);
}

}  // namespace retort::models

#include "models/ops/rope.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "base/error.h"
#include "parallel/staged_copy.h"

namespace retort::models {
namespace {

using at::Tensor;

// theta^(2 i / d), i < d / 2.
Tensor periods(double theta, int64_t dim) {
  const Tensor exponents =
      at::arange(0, dim, 2, at::TensorOptions().dtype(at::kFloat)) / static_cast<double>(dim);
  return at::pow(at::Scalar(theta), exponents);
}

// Llama 3 slows long wavelengths down by `factor`, keeps short ones and interpolates between.
Tensor llama3_frequencies(const Rope& rope, const Tensor& frequencies) {
  const auto context = static_cast<double>(rope.original_max_position_embeddings);
  const double longest_kept = context / rope.high_freq_factor;
  const double shortest_scaled = context / rope.low_freq_factor;
  const Tensor wavelength = at::reciprocal(frequencies) * (2.0 * std::numbers::pi);
  const Tensor scaled = frequencies / rope.factor;
  const Tensor smooth = (at::reciprocal(wavelength) * context - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  const Tensor between = (1.0 - smooth) * scaled + smooth * frequencies;
  const Tensor slowed = at::where(wavelength > shortest_scaled, scaled, frequencies);
  return at::where((wavelength >= longest_kept).logical_and(wavelength <= shortest_scaled), between,
                   slowed);
}

// YaRN keeps dimensions that turn more than beta_fast times within the original context, slows
// those down that turn less than beta_slow times, and has a ramp between.
Tensor yarn_frequencies(const Rope& rope, int64_t dim) {
  const auto context = static_cast<double>(rope.original_max_position_embeddings);
  const auto dimension_of = [&](double turns) {
    return static_cast<double>(dim) * std::log(context / (turns * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(rope.theta));
  };
  double low = dimension_of(rope.beta_fast);
  double high = dimension_of(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) high += 0.001;  // the ramp has a width

  const Tensor index = at::arange(0, dim / 2, at::TensorOptions().dtype(at::kFloat));
  const Tensor kept = 1.0 - ((index - low) / (high - low)).clamp(0.0, 1.0);
  const Tensor period = periods(rope.theta, dim);
  return at::reciprocal(period * rope.factor) * (1.0 - kept) + at::reciprocal(period) * kept;
}

// Dynamic NTK lets the base grow with what the sequence has beyond the context of the model.
Tensor dynamic_frequencies(const Rope& rope, int64_t dim, int64_t length) {
  const auto context = static_cast<double>(rope.original_max_position_embeddings);
  const double tokens = std::max(static_cast<double>(length), context);
  const double growth = rope.factor * tokens / context - (rope.factor - 1.0);
  const double exponent = static_cast<double>(dim) / static_cast<double>(dim - 2);
  return at::reciprocal(periods(rope.theta * std::pow(growth, exponent), dim));
}

Tensor longrope_frequencies(const Rope& rope, int64_t dim, int64_t length) {
  const std::vector<double>& divisors =
      length > rope.original_max_position_embeddings ? rope.long_factor : rope.short_factor;
  Tensor divisor =
      at::empty({static_cast<int64_t>(divisors.size())}, at::TensorOptions().dtype(at::kFloat));
  std::transform(divisors.begin(), divisors.end(), divisor.mutable_data_ptr<float>(),
                 [](double value) { return static_cast<float>(value); });
  return at::reciprocal(divisor * periods(rope.theta, dim));
}

// Turns x [R, heads, head_dim] by the angles of cos and sin [R, 1, half] with four kernels, which
// write each element of the result twice.
Tensor turned(const Tensor& x, const Tensor& cos, const Tensor& sin, double sign) {
  const int64_t half = cos.size(-1);
  const int64_t rest = x.size(-1) - 2 * half;
  Tensor y = at::empty(x.sizes(), x.options());
  const auto half_of = [&](const Tensor& t, int64_t which) {
    return t.narrow(-1, which * half, half);
  };
  Tensor one = half_of(y, 0), other = half_of(y, 1);
  at::mul_out(one, half_of(x, 0), cos);
  one.addcmul_(half_of(x, 1), sin, -sign);
  at::mul_out(other, half_of(x, 1), cos);
  other.addcmul_(half_of(x, 0), sin, sign);
  if (rest > 0) y.narrow(-1, 2 * half, rest).copy_(x.narrow(-1, 2 * half, rest));
  return y;
}

// Rotates on a device, as one node of autograd. The gradient of a rotation is the rotation back.
class Rotation : public torch::autograd::Function<Rotation> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x, const Tensor& cos,
                        const Tensor& sin) {
    ctx->save_for_backward({cos, sin});
    return turned(x, cos, sin, 1);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    return {turned(grads[0], saved[0], saved[1], -1), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor rope_inverse_frequencies(const Rope& rope, int64_t head_dim, int64_t length) {
  const int64_t dim = rope.rotary_dim(head_dim);
  if (rope.type == "yarn") return yarn_frequencies(rope, dim);
  if (rope.type == "dynamic") return dynamic_frequencies(rope, dim, length);
  if (rope.type == "longrope") return longrope_frequencies(rope, dim, length);
  const Tensor frequencies = at::reciprocal(periods(rope.theta, dim));
  if (rope.type == "linear") return frequencies / rope.factor;
  return rope.type == "llama3" ? llama3_frequencies(rope, frequencies) : frequencies;
}

RotaryEmbedding::RotaryEmbedding(const Rope& rope, int64_t head_dim, at::Device device)
    : rope_(rope),
      head_dim_(head_dim),
      inverse_frequencies_(rope_inverse_frequencies(rope, head_dim).to(device)) {}

RopeTable RotaryEmbedding::table_of(const Tensor& angles) const {
  const double factor = rope_.attention_factor;
  if (factor == 1.0) return {at::cos(angles), at::sin(angles)};
  return {at::cos(angles) * factor, at::sin(angles) * factor};
}

RopeTable RotaryEmbedding::table(const Tensor& positions) const {
  return table_of(at::outer(positions.to(at::kFloat), inverse_frequencies_));
}

// Returns the length that decides the frequencies of a sequence, or 0 within the limit, where all
// sequences have the same.
int64_t RotaryEmbedding::scaled_length(const PackedTokens& tokens, int64_t sequence) const {
  const auto s = static_cast<size_t>(sequence);
  const int64_t limit = rope_.fixed_length();
  const int64_t length = tokens.cu_seqlens[s + 1] - tokens.cu_seqlens[s];
  const auto scaled = [&](int64_t count) -> int64_t {
    if (count <= limit) return 0;
    return rope_.type == "longrope" ? limit + 1 : count;
  };
  if (tokens.forks.empty() || tokens.forks[s].begins.empty()) return scaled(length);

  // All parts of a sequence share one rotation, so what stands before the branches and each branch
  // behind the prefix must have the same frequencies.
  const Fork& fork = tokens.forks[s];
  const int64_t first = scaled(fork.begins.front());
  for (size_t branch = 0; branch < fork.begins.size(); ++branch) {
    const int64_t end = branch + 1 < fork.begins.size() ? fork.begins[branch + 1] : length;
    if (scaled(fork.prefix + end - fork.begins[branch]) != first)
      throw Error(ErrorCode::kInvalidArgument,
                  "the rotary frequencies of rope type '" + rope_.type +
                      "' depend on a sequence's length above " + std::to_string(limit) +
                      " tokens: sequences that share a prefix must be shorter; lower max_length")
          .with("rope_type", rope_.type)
          .with("limit", limit);
  }
  return first;
}

RopeTable RotaryEmbedding::table(const Tensor& positions, const PackedTokens& tokens) const {
  if (rope_.fixed_length() == 0) return table(positions);

  // Each sequence has a product of its own, because its length decides the frequencies; the padding
  // counts as a short one.
  std::vector<Tensor> angles;
  const Tensor rows = positions.to(at::kFloat);
  for (int64_t s = 0; s < tokens.num_sequences(); ++s) {
    const int64_t begin = tokens.cu_seqlens[static_cast<size_t>(s)];
    const int64_t end = tokens.cu_seqlens[static_cast<size_t>(s) + 1];
    const int64_t length = scaled_length(tokens, s);
    const Tensor frequencies =
        length == 0 ? inverse_frequencies_
                    : parallel::staged_to(rows.device(),
                                          rope_inverse_frequencies(rope_, head_dim_, length));
    angles.push_back(at::outer(rows.narrow(0, begin, end - begin), frequencies));
  }
  const int64_t padding = rows.size(0) - tokens.num_tokens();
  angles.push_back(at::outer(rows.narrow(0, tokens.num_tokens(), padding), inverse_frequencies_));
  return table_of(at::cat(angles));
}

Tensor rotate(const Tensor& x, const RopeTable& table) {
  const int64_t half = table.cos.size(-1);
  const Tensor cos = table.cos.to(x.scalar_type()).unsqueeze(1);
  const Tensor sin = table.sin.to(x.scalar_type()).unsqueeze(1);
  if (!x.is_cpu()) return Rotation::apply(x, cos, sin);
  const Tensor first = x.narrow(-1, 0, half);
  const Tensor second = x.narrow(-1, half, half);
  const Tensor one = first * cos - second * sin;
  const Tensor other = second * cos + first * sin;

  // Dimensions beyond the rotated ones pass through (partial rotation).
  const int64_t rest = x.size(-1) - 2 * half;
  if (rest == 0) return at::cat({one, other}, -1);
  return at::cat({one, other, x.narrow(-1, 2 * half, rest)}, -1);
}

}  // namespace retort::models

#include "models/ops/device_functions.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <string>

#include "base/error.h"
#include "kernels/device_kernels.h"
#include "kernels/launch_shapes.h"

namespace retort::models {
namespace {

using at::Tensor;
using kernels::ceil_div;
using kernels::device_kernels;
using kernels::Launch;
using kernels::launch_shape;
using kernels::LaunchShape;
using kernels::read_address;
using kernels::ShapedKernel;
using kernels::write_address;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

constexpr int64_t kWarp = 32;
constexpr int64_t kMaxNormWidth = 8192;  // of the gradient, whose threads have 8 or 16 columns

float offset_of(bool unit_offset) { return unit_offset ? 1.0f : 0.0f; }

// Launches "retort_<name>_bf16" or "_f32", by the dtype of x.
template <class... Arguments>
void launch(const char* name, const Tensor& x, Launch shape, const Arguments&... arguments) {
  kernels::launch_kernel_for(x.scalar_type(), std::string("retort_") + name, x.device(), shape,
                             arguments...);
}

// A norm has this many threads for a row; a block of threads may have several rows.
struct NormShape {
  int64_t threads;
  int64_t block;
  int64_t rows_of_block() const { return block / threads; }
};
NormShape norm_shape(const Tensor& x, const LaunchShape& shape) {
  const int64_t of_thread = shape.share / x.element_size();
  const int64_t wanted = ceil_div(ceil_div(x.size(-1), of_thread), kWarp) * kWarp;
  const int64_t threads = std::clamp(wanted, kWarp, shape.threads);
  return {threads, std::max(threads, shape.least / threads * threads)};
}

void norm_forward(const Tensor& a, const Tensor& b, const Tensor& weight, Tensor& sum, Tensor& y,
                  Tensor& rstd, double eps, bool unit_offset) {
  const int64_t width = a.size(-1);
  const int64_t rows = width == 0 ? 0 : a.numel() / width;
  const LaunchShape& limits = launch_shape(ShapedKernel::kAddRmsNorm, a.device());
  const NormShape shape = norm_shape(a, limits);
  launch("add_rms_norm", a,
         {.grid_x = kernels::grid_of(ceil_div(rows, shape.rows_of_block()), limits),
          .block = shape.block},
         read_address(a), read_address(b), read_address(weight), write_address(sum),
         write_address(y), write_address(rstd), rows, width, static_cast<float>(eps),
         offset_of(unit_offset), static_cast<int32_t>(shape.threads));
}

// dw, of any shape, as the sum of the rows of `partial`.
void sum_columns(const Tensor& partial, int64_t rows, Tensor& dw) {
  const LaunchShape& shape = launch_shape(ShapedKernel::kColumnSum, dw.device());
  launch("column_sum", dw, {.grid_x = ceil_div(dw.numel(), kWarp), .block = shape.threads},
         read_address(partial), write_address(dw), static_cast<int32_t>(rows), dw.numel(),
         int32_t{0});
}

// Returns dx, and the gradient by the weight in its dtype. Blocks write partial sums of the latter
// to rows of their own, which a second kernel adds, so that the order does not depend on time.
std::pair<Tensor, Tensor> norm_backward(const Tensor& dy, const Tensor& s, const Tensor& weight,
                                        const Tensor& rstd, const Tensor& dsum, bool unit_offset) {
  const int64_t width = s.size(-1);
  const int64_t rows = rstd.numel();
  const LaunchShape& limits =
      launch_shape(s.element_size() == 2 ? ShapedKernel::kRmsNormBackwardBf16
                                         : ShapedKernel::kRmsNormBackwardF32,
                   s.device());
  const NormShape shape = norm_shape(s, limits);
  const int64_t blocks =
      kernels::grid_of(std::max<int64_t>(ceil_div(rows, shape.rows_of_block()), 1), limits);
  const int64_t partial_rows = blocks * shape.rows_of_block();
  Tensor dx = at::empty_like(s);
  Tensor dw = at::empty_like(weight);
  Tensor partial = at::empty({partial_rows, width}, s.options().dtype(at::kFloat));
  launch("rms_norm_backward", s, {.grid_x = blocks, .block = shape.block}, read_address(dy),
         read_address(s), read_address(weight), read_address(rstd), read_address(dsum),
         write_address(dx), write_address(partial), rows, width, offset_of(unit_offset),
         static_cast<int32_t>(shape.threads));
  sum_columns(partial, partial_rows, dw);
  return {dx, dw};
}

Tensor row_numbers(const Tensor& x) {
  const int64_t width = x.size(-1);
  return at::empty({width == 0 ? 0 : x.numel() / width}, x.options().dtype(at::kFloat));
}

class DeviceRmsNorm : public Function<DeviceRmsNorm> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, double eps,
                        bool unit_offset) {
    Tensor y = at::empty_like(x);
    Tensor rstd = row_numbers(x);
    Tensor no_sum;
    norm_forward(x, {}, weight, no_sum, y, rstd, eps, unit_offset);
    ctx->save_for_backward({x, weight, rstd});
    ctx->saved_data["unit_offset"] = unit_offset;
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const auto [dx, dw] = norm_backward(grads[0].contiguous(), saved[0], saved[1], saved[2], {},
                                        ctx->saved_data["unit_offset"].toBool());
    return {dx, dw, Tensor(), Tensor()};
  }
};

class DeviceAddRmsNorm : public Function<DeviceAddRmsNorm> {
 public:
  static variable_list forward(AutogradContext* ctx, const Tensor& a, const Tensor& b,
                               const Tensor& weight, double eps, bool unit_offset) {
    Tensor sum = at::empty_like(a);
    Tensor y = at::empty_like(a);
    Tensor rstd = row_numbers(a);
    norm_forward(a, b, weight, sum, y, rstd, eps, unit_offset);
    ctx->save_for_backward({sum, weight, rstd});
    ctx->saved_data["unit_offset"] = unit_offset;
    ctx->set_materialize_grads(false);
    return {sum, y};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    // If nobody used the norm, the gradient of the sum is that of both its terms.
    if (!grads[1].defined()) return {grads[0], grads[0], Tensor(), Tensor(), Tensor()};
    const variable_list saved = ctx->get_saved_variables();
    const Tensor dsum = grads[0].defined() ? grads[0].contiguous() : Tensor();
    const auto [dx, dw] = norm_backward(grads[1].contiguous(), saved[0], saved[1], saved[2], dsum,
                                        ctx->saved_data["unit_offset"].toBool());
    return {dx, dx, dw, Tensor(), Tensor()};
  }
};

class DeviceGated : public Function<DeviceGated> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& gate, const Tensor& up, bool is_silu) {
    Tensor y = at::empty_like(gate);
    launch(is_silu ? "gated_silu" : "gated_gelu", gate, shape_of(gate, ShapedKernel::kGated),
           read_address(gate), read_address(up), write_address(y), gate.numel());
    ctx->save_for_backward({gate, up});
    ctx->saved_data["is_silu"] = is_silu;
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor dy = grads[0].contiguous();
    Tensor dgate = at::empty_like(dy);
    Tensor dup = at::empty_like(dy);
    const bool is_silu = ctx->saved_data["is_silu"].toBool();
    launch(is_silu ? "gated_silu_backward" : "gated_gelu_backward", dy,
           shape_of(dy, ShapedKernel::kGatedBackward), read_address(dy), read_address(saved[0]),
           read_address(saved[1]), write_address(dgate), write_address(dup), dy.numel());
    return {dgate, dup, Tensor()};
  }

 private:
  // A block has a tile of the elements.
  static Launch shape_of(const Tensor& x, ShapedKernel kernel) {
    const LaunchShape& shape = launch_shape(kernel, x.device());
    const int64_t tile = shape.threads * (x.element_size() == 2 ? 16 : 8);
    return {.grid_x = kernels::grid_of(ceil_div(x.numel(), tile), shape), .block = shape.threads};
  }
};

// The heads of q and k, in the terms of kernels/rotary.cuh.
struct Heads {
  int64_t rows, heads, kv_heads, dim, half;

  static Heads of(const Tensor& q, const Tensor& k, const Tensor& cos, int64_t dim) {
    return {q.size(0), q.size(1) / dim, k.size(1) / dim, dim, cos.size(-1)};
  }
  int64_t q_stride() const { return heads * dim; }
  int64_t k_stride() const { return kv_heads * dim; }
  Launch shape(const LaunchShape& of) const {
    const int64_t blocks = std::max<int64_t>(ceil_div(rows, of.share), 1);
    return {.grid_x = kernels::grid_of(blocks, of), .block = of.threads};
  }
};
constexpr int32_t kHeadPasses = 3;

class DeviceHeads : public Function<DeviceHeads> {
 public:
  static variable_list forward(AutogradContext* ctx, const Tensor& q, const Tensor& k,
                               const std::optional<Tensor>& q_weight,
                               const std::optional<Tensor>& k_weight, const Tensor& cos,
                               const Tensor& sin, int64_t dim, double eps, bool unit_offset) {
    const Tensor q_norm = q_weight.value_or(Tensor()), k_norm = k_weight.value_or(Tensor());
    const Heads heads = Heads::of(q, k, cos, dim);
    Tensor q_out = at::empty({heads.rows, heads.heads, dim}, q.options());
    Tensor k_out = at::empty({heads.rows, heads.kv_heads, dim}, k.options());
    launch("qk_norm_rope", q, heads.shape(launch_shape(ShapedKernel::kHeads, q.device())),
           read_address(q), read_address(k), read_address(q_norm), read_address(k_norm),
           read_address(cos), read_address(sin), write_address(q_out), write_address(k_out),
           heads.rows, static_cast<int32_t>(heads.heads), static_cast<int32_t>(heads.kv_heads),
           static_cast<int32_t>(dim), static_cast<int32_t>(heads.half), heads.q_stride(),
           heads.k_stride(), heads.q_stride(), heads.k_stride(), static_cast<float>(eps),
           offset_of(unit_offset), kHeadPasses);

    // Without norms the gradient needs the angles alone, so q and k are not kept.
    const bool is_normed = q_norm.defined();
    ctx->save_for_backward(
        {is_normed ? q : Tensor(), is_normed ? k : Tensor(), q_norm, k_norm, cos, sin});
    ctx->saved_data["dim"] = dim;
    ctx->saved_data["eps"] = eps;
    ctx->saved_data["unit_offset"] = unit_offset;
    return {q_out, k_out};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const int64_t dim = ctx->saved_data["dim"].toInt();
    const Tensor dq = grads[0].contiguous().flatten(1);
    const Tensor dk = grads[1].contiguous().flatten(1);
    const Heads heads = Heads::of(dq, dk, saved[4], dim);
    Tensor dq_in = at::empty_like(dq);
    Tensor dk_in = at::empty_like(dk);

    const Launch shape = heads.shape(launch_shape(ShapedKernel::kHeadsBackward, dq.device()));
    const bool is_normed = saved[2].defined();
    // With norms each block writes partial sums of the gradients by both weights, which column_sum
    // adds below.
    Tensor partial;
    if (is_normed) partial = at::empty({shape.grid_x, 2, dim}, dq.options().dtype(at::kFloat));
    launch("qk_norm_rope_backward", dq, shape, read_address(dq), read_address(dk),
           read_address(saved[0]), read_address(saved[1]), read_address(saved[2]),
           read_address(saved[3]), read_address(saved[4]), read_address(saved[5]),
           write_address(dq_in), write_address(dk_in), write_address(partial), heads.rows,
           static_cast<int32_t>(heads.heads), static_cast<int32_t>(heads.kv_heads),
           static_cast<int32_t>(dim), static_cast<int32_t>(heads.half), heads.q_stride(),
           heads.k_stride(), heads.q_stride(), heads.k_stride(), heads.q_stride(), heads.k_stride(),
           static_cast<float>(ctx->saved_data["eps"].toDouble()),
           offset_of(ctx->saved_data["unit_offset"].toBool()), kHeadPasses);

    // The result has a place for each of the nine arguments of forward. Without norms only q and k
    // have a gradient.
    variable_list result(9);
    result[0] = dq_in;
    result[1] = dk_in;
    if (!is_normed) return result;
    Tensor dw = at::empty({2, dim}, saved[2].options());
    sum_columns(partial, shape.grid_x, dw);
    result[2] = dw.select(0, 0);
    result[3] = dw.select(0, 1);
    return result;
  }
};

bool heads_have_kernels(const Tensor& q, const Tensor& k, const HeadNorms& norms,
                        int64_t head_dim) {
  constexpr int64_t kMaxHeadDim = 256;  // of kernels/rotary.cuh
  return has_kernels(q, norms.q) && has_kernels(k, norms.k) &&
         norms.q.defined() == norms.k.defined() && q.scalar_type() == k.scalar_type() &&
         head_dim % 2 == 0 && head_dim <= kMaxHeadDim;
}

}  // namespace

bool has_kernels(const Tensor& x, const Tensor& weight) {
  if (device_kernels(x.device()) == nullptr || !x.is_contiguous()) return false;
  if (x.scalar_type() != at::kFloat && x.scalar_type() != at::kBFloat16) return false;
  return !weight.defined() || (weight.scalar_type() == x.scalar_type() && weight.is_contiguous() &&
                               weight.device() == x.device());
}

bool norm_has_kernels(const Tensor& x, const Tensor& weight) {
  return has_kernels(x, weight) && x.size(-1) <= kMaxNormWidth;
}

Tensor device_rms_norm(const Tensor& x, const Tensor& weight, double eps, bool unit_offset) {
  return DeviceRmsNorm::apply(x, weight, eps, unit_offset);
}

std::pair<Tensor, Tensor> device_add_rms_norm(const Tensor& a, const Tensor& b,
                                              const Tensor& weight, double eps, bool unit_offset) {
  const variable_list result = DeviceAddRmsNorm::apply(a, b, weight, eps, unit_offset);
  return {result[0], result[1]};
}

Tensor device_gated(const Tensor& gate, const Tensor& up, Activation activation) {
  return DeviceGated::apply(gate, up, activation == Activation::kSilu);
}

std::pair<Tensor, Tensor> normed_rotated_heads(const Tensor& q, const Tensor& k,
                                               const HeadNorms& norms, const RopeTable& table,
                                               int64_t head_dim) {
  if (!heads_have_kernels(q, k, norms, head_dim)) {
    const auto turned = [&](const Tensor& x, const Tensor& weight) {
      const Tensor normed = head_norm(x, weight, norms, head_dim);
      return rotate(normed.view({x.size(0), x.size(1) / head_dim, head_dim}), table);
    };
    return {turned(q, norms.q), turned(k, norms.k)};
  }

  const Tensor cos = table.cos.to(at::kFloat).contiguous();
  const Tensor sin = table.sin.to(at::kFloat).contiguous();
  // Function takes an undefined tensor only as a missing one.
  const auto if_defined = [](const Tensor& weight) {
    return weight.defined() ? std::optional(weight) : std::nullopt;
  };
  const variable_list result = DeviceHeads::apply(q, k, if_defined(norms.q), if_defined(norms.k),
                                                  cos, sin, head_dim, norms.eps, norms.unit_offset);
  return {result[0], result[1]};
}

}  // namespace retort::models

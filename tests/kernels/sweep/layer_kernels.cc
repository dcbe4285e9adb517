// The kernels of a layer: norms, heads, gates.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sin.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device_kernels.h"
#include "tests/kernels/sweep/sweep.h"

namespace retort::kernels::sweep {
namespace {

constexpr int64_t kWarp = 32;
constexpr float kEps = 1e-6F, kOffset = 0;

struct Layer {
  Layer(const SweepOptions& options, at::ScalarType dtype)
      : device(options.device), sizes(options.sizes), dtype(dtype) {}

  at::Tensor random(at::IntArrayRef size) const {
    return at::randn(size, at::TensorOptions(device)).to(dtype);
  }
  at::Tensor floats(at::IntArrayRef size) const {
    return at::empty(size, at::TensorOptions(at::kFloat).device(device));
  }
  std::string text() const { return dtype == at::kBFloat16 ? ", bf16" : ", f32"; }
  double element_bytes() const { return dtype == at::kBFloat16 ? 2 : 4; }

  at::Device device;
  SweepSizes sizes;
  at::ScalarType dtype;
};

// How the rows of a norm lie over threads, as models/ops/device_functions.cc has them.
struct NormRows {
  NormRows(const LaunchShape& shape, const Layer& layer) {
    const auto of_thread = shape.share / static_cast<int64_t>(layer.element_bytes());
    const int64_t wanted = ceil_div(ceil_div(layer.sizes.hidden, of_thread), kWarp) * kWarp;
    threads = std::clamp(wanted, kWarp, shape.threads);
    block = std::max(threads, shape.least / threads * threads);
    grid = grid_of(ceil_div(layer.sizes.tokens, block / threads), shape);
  }
  int64_t threads, block, grid;
};

SweptKernel add_rms_norm(const SweepOptions& options) {
  const Layer layer(options, at::kBFloat16);
  const int64_t rows = layer.sizes.tokens, width = layer.sizes.hidden;
  const at::Tensor a = layer.random({rows, width}), b = layer.random({rows, width}),
                   weight = layer.random({width});
  at::Tensor sum = at::empty_like(a), y = at::empty_like(a), rstd = layer.floats({rows});
  const auto run = [=](const LaunchShape& shape, int64_t) mutable {
    const NormRows over(shape, layer);
    launch_kernel_for(layer.dtype, "retort_add_rms_norm", layer.device,
                      {.grid_x = over.grid, .block = over.block}, read_address(a), read_address(b),
                      read_address(weight), write_address(sum), write_address(y),
                      write_address(rstd), rows, width, kEps, kOffset,
                      static_cast<int32_t>(over.threads));
  };
  return {.row = ShapedKernel::kAddRmsNorm,
          .size = std::to_string(rows) + " x " + std::to_string(width) + layer.text(),
          .bytes = 8.0 * static_cast<double>(rows * width),
          .others = {{.threads = 512, .share = 16, .least = 64, .blocks = 1 << 20},
                     {.threads = 512, .share = 64, .least = 64, .blocks = 1 << 20},
                     {.threads = 512, .share = 32, .least = 256, .blocks = 1 << 20},
                     {.threads = 512, .share = 32, .least = 512, .blocks = 1 << 20},
                     {.threads = 512, .share = 32, .least = 64, .blocks = 1056}},
          .run = run,
          .result = [y] { return y.clone(); },
          .outputs = [=] { return std::vector{sum, y, rstd}; }};
}

// A thread holds a fixed number of a row's columns, so that its share is no choice.
SweptKernel rms_norm_backward(const SweepOptions& options, at::ScalarType dtype) {
  const Layer layer(options, dtype);
  const int64_t rows = layer.sizes.tokens, width = layer.sizes.hidden;
  const at::Tensor dy = layer.random({rows, width}), s = layer.random({rows, width}),
                   dsum = layer.random({rows, width}), weight = layer.random({width});
  const at::Tensor rstd = layer.floats({rows}).fill_(1);
  at::Tensor dx = at::empty_like(s);
  const auto run = [=](const LaunchShape& shape, int64_t) mutable {
    const NormRows over(shape, layer);
    at::Tensor partial = layer.floats({over.grid * (over.block / over.threads), width});
    launch_kernel_for(layer.dtype, "retort_rms_norm_backward", layer.device,
                      {.grid_x = over.grid, .block = over.block}, read_address(dy), read_address(s),
                      read_address(weight), read_address(rstd), read_address(dsum),
                      write_address(dx), write_address(partial), rows, width, kOffset,
                      static_cast<int32_t>(over.threads));
  };
  const bool is_half = dtype == at::kBFloat16;
  const int64_t most = is_half ? 1024 : 512, share = is_half ? 16 : 64;
  const auto shape = [=](int64_t least, int64_t blocks) {
    return LaunchShape{.threads = most, .share = share, .least = least, .blocks = blocks};
  };
  return {.row = is_half ? ShapedKernel::kRmsNormBackwardBf16 : ShapedKernel::kRmsNormBackwardF32,
          .size = std::to_string(rows) + " x " + std::to_string(width) + layer.text(),
          .bytes = 4 * layer.element_bytes() * static_cast<double>(rows * width),
          .others = {shape(256, 264), shape(256, 396), shape(256, 1056), shape(512, 264),
                     shape(512, 528), shape(32, 1056)},
          .run = run,
          .result = [dx] { return dx.clone(); },
          .outputs = [dx] { return std::vector{dx}; }};
}

SweptKernel column_sum(const SweepOptions& options) {
  const Layer layer(options, at::kBFloat16);
  const int64_t rows = layer.sizes.partial_rows, width = layer.sizes.hidden;
  const at::Tensor partial = layer.random({rows, width}).to(at::kFloat);
  at::Tensor dw = layer.random({width});
  const auto run = [=](const LaunchShape& shape, int64_t) mutable {
    launch_kernel_for(layer.dtype, "retort_column_sum", layer.device,
                      {.grid_x = ceil_div(width, kWarp), .block = shape.threads},
                      read_address(partial), write_address(dw), static_cast<int32_t>(rows), width,
                      int32_t{0});
  };
  return {.row = ShapedKernel::kColumnSum,
          .size = std::to_string(rows) + " x " + std::to_string(width),
          .bytes = 4.0 * static_cast<double>(rows * width),
          .others = {{.threads = 256}, {.threads = 384}, {.threads = 768}, {.threads = 1024}},
          .run = run,
          .result = [dw] { return dw.clone(); },
          .outputs = [dw] { return std::vector{dw}; }};
}

// The heads of q and k with their norms, and the angles of each row.
struct Heads : Layer {
  explicit Heads(const SweepOptions& options)
      : Layer(options, at::kBFloat16),
        q(random({sizes.tokens, sizes.heads * sizes.head_dim})),
        k(random({sizes.tokens, sizes.kv_heads * sizes.head_dim})),
        q_weight(random({sizes.head_dim})),
        k_weight(random({sizes.head_dim})),
        q_out(at::empty_like(q)),
        k_out(at::empty_like(k)) {
    const at::Tensor angles =
        at::randn({sizes.tokens, sizes.head_dim / 2}, at::TensorOptions(device));
    cos = at::cos(angles);
    sin = at::sin(angles);
  }
  Launch launch(const LaunchShape& shape) const {
    const int64_t blocks = std::max<int64_t>(ceil_div(sizes.tokens, shape.share), 1);
    return {.grid_x = grid_of(blocks, shape), .block = shape.threads};
  }
  std::string size() const {
    return std::to_string(sizes.tokens) + " x (" + std::to_string(sizes.heads) + " + " +
           std::to_string(sizes.kv_heads) + ") x " + std::to_string(sizes.head_dim) + text();
  }
  // `each` of an element of q and k, and the angles once.
  double bytes(double each) const {
    const auto rows = static_cast<double>(sizes.tokens);
    return rows * (each * static_cast<double>(q.size(1) + k.size(1)) +
                   4 * static_cast<double>(sizes.head_dim));
  }

  at::Tensor q, k, q_weight, k_weight, q_out, k_out, cos, sin;
};
constexpr int32_t kPasses = 3;

SweptKernel heads(const SweepOptions& options) {
  const auto x = std::make_shared<Heads>(options);
  const auto run = [x](const LaunchShape& shape, int64_t) {
    const SweepSizes& sizes = x->sizes;
    const int64_t q_stride = x->q.size(1), k_stride = x->k.size(1);
    launch_kernel_for(x->dtype, "retort_qk_norm_rope", x->device, x->launch(shape),
                      read_address(x->q), read_address(x->k), read_address(x->q_weight),
                      read_address(x->k_weight), read_address(x->cos), read_address(x->sin),
                      write_address(x->q_out), write_address(x->k_out), sizes.tokens,
                      static_cast<int32_t>(sizes.heads), static_cast<int32_t>(sizes.kv_heads),
                      static_cast<int32_t>(sizes.head_dim),
                      static_cast<int32_t>(sizes.head_dim / 2), q_stride, k_stride, q_stride,
                      k_stride, kEps, kOffset, kPasses);
  };
  return {.row = ShapedKernel::kHeads,
          .size = x->size(),
          .bytes = x->bytes(4),
          .others = {{.threads = 128, .share = 1, .blocks = 1 << 20},
                     {.threads = 128, .share = 4, .blocks = 1 << 20},
                     {.threads = 64, .share = 1, .blocks = 1 << 20},
                     {.threads = 256, .share = 2, .blocks = 1 << 20},
                     {.threads = 256, .share = 4, .blocks = 1 << 20}},
          .run = run,
          .result = [x] { return x->q_out.clone(); },
          .outputs = [x] { return std::vector{x->q_out, x->k_out}; }};
}

SweptKernel heads_backward(const SweepOptions& options) {
  const auto x = std::make_shared<Heads>(options);
  const auto run = [x](const LaunchShape& shape, int64_t) {
    const SweepSizes& sizes = x->sizes;
    const int64_t q_stride = x->q.size(1), k_stride = x->k.size(1);
    const Launch launch = x->launch(shape);
    at::Tensor partial = x->floats({launch.grid_x, 2, sizes.head_dim});
    // The gradients of the outputs are the inputs once more.
    launch_kernel_for(
        x->dtype, "retort_qk_norm_rope_backward", x->device, launch, read_address(x->q),
        read_address(x->k), read_address(x->q), read_address(x->k), read_address(x->q_weight),
        read_address(x->k_weight), read_address(x->cos), read_address(x->sin),
        write_address(x->q_out), write_address(x->k_out), write_address(partial), sizes.tokens,
        static_cast<int32_t>(sizes.heads), static_cast<int32_t>(sizes.kv_heads),
        static_cast<int32_t>(sizes.head_dim), static_cast<int32_t>(sizes.head_dim / 2), q_stride,
        k_stride, q_stride, k_stride, q_stride, k_stride, kEps, kOffset, kPasses);
  };
  return {.row = ShapedKernel::kHeadsBackward,
          .size = x->size(),
          .bytes = x->bytes(6),
          .others = {{.threads = 128, .share = 2, .blocks = 264},
                     {.threads = 128, .share = 2, .blocks = 1056},
                     {.threads = 128, .share = 2, .blocks = 2112},
                     {.threads = 256, .share = 2, .blocks = 528},
                     {.threads = 64, .share = 2, .blocks = 1056}},
          .run = run,
          .result = [x] { return x->q_out.clone(); },
          .outputs = [x] { return std::vector{x->q_out, x->k_out}; }};
}

SweptKernel gated(const SweepOptions& options, bool backward) {
  const Layer layer(options, at::kBFloat16);
  const int64_t count = layer.sizes.tokens * layer.sizes.inner;
  const at::Tensor gate = layer.random({count}), up = layer.random({count}),
                   dy = layer.random({count});
  at::Tensor first = at::empty_like(gate), second = at::empty_like(gate);
  const auto run = [=](const LaunchShape& shape, int64_t) mutable {
    const int64_t tile = shape.threads * 16;
    const Launch launch{.grid_x = grid_of(ceil_div(count, tile), shape), .block = shape.threads};
    if (backward)
      launch_kernel_for(layer.dtype, "retort_gated_silu_backward", layer.device, launch,
                        read_address(dy), read_address(gate), read_address(up),
                        write_address(first), write_address(second), count);
    else
      launch_kernel_for(layer.dtype, "retort_gated_silu", layer.device, launch, read_address(gate),
                        read_address(up), write_address(first), count);
  };
  return {.row = backward ? ShapedKernel::kGatedBackward : ShapedKernel::kGated,
          .size = std::to_string(layer.sizes.tokens) + " x " + std::to_string(layer.sizes.inner) +
                  layer.text(),
          .bytes = (backward ? 10.0 : 6.0) * static_cast<double>(count),
          .others = {{.threads = 64},
                     {.threads = 128},
                     {.threads = 512},
                     {.threads = 256, .blocks = 1056},
                     {.threads = 256, .blocks = 4224}},
          .run = run,
          .result = [first] { return first.clone(); },
          .outputs = [=] { return std::vector{first, second}; }};
}

}  // namespace

std::vector<SweptKernel> layer_kernels(const SweepOptions& options) {
  return {add_rms_norm(options),
          rms_norm_backward(options, at::kBFloat16),
          rms_norm_backward(options, at::kFloat),
          column_sum(options),
          heads(options),
          heads_backward(options),
          gated(options, /*backward=*/false),
          gated(options, /*backward=*/true)};
}

}  // namespace retort::kernels::sweep

// The kernels of attention over a paged cache.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device_kernels.h"
#include "tests/kernels/sweep/sweep.h"

namespace retort::kernels::sweep {
namespace {

constexpr int64_t kBlockTokens = 16;
constexpr int64_t kTogether = 2;  // heads of a group that read a key together

// As models/generation/paged_decode.cc has it, but for pieces that follow from the sequences.
struct Decode {
  explicit Decode(const SweepOptions& options)
      : device(options.device),
        sizes(options.sizes),
        blocks(ceil_div(sizes.keys, kBlockTokens)),
        q(random({sizes.sequences, sizes.heads, sizes.head_dim})),
        keys(random(cache_size())),
        values(random(cache_size())),
        y(at::empty_like(q)),
        tables(at::arange(sizes.sequences * blocks, ints()).view({sizes.sequences, blocks})),
        lengths(at::full({sizes.sequences}, sizes.keys, ints())) {}

  void run_pieces(const LaunchShape& shape) {
    num_pieces = ceil_div(sizes.keys, shape.share);
    const int64_t places = sizes.sequences * sizes.heads * num_pieces;
    if (!scratch.defined() || scratch.numel() < places * (sizes.head_dim + 2))
      scratch = at::empty({places * (sizes.head_dim + 2)}, at::TensorOptions(device));
    const int64_t tiles = ceil_div(sizes.heads / sizes.kv_heads, kTogether);
    const int64_t token_stride = sizes.kv_heads * sizes.head_dim;
    const float scale = 1 / std::sqrt(static_cast<float>(sizes.head_dim)), softcap = 0;
    piece = shape.share;
    launch_kernel(*device_kernels(device), device,
                  {.name = "retort_paged_decode_bf16_g2",
                   .grid_x = num_pieces,
                   .grid_y = sizes.sequences * sizes.kv_heads * tiles,
                   .block = shape.threads},
                  read_address(q), read_address(keys), read_address(values), read_address(tables),
                  read_address(lengths), maxima(), weights(), sums(),
                  static_cast<int32_t>(sizes.heads), static_cast<int32_t>(sizes.kv_heads),
                  static_cast<int32_t>(sizes.head_dim), static_cast<int32_t>(blocks),
                  static_cast<int32_t>(kBlockTokens), kBlockTokens * token_stride, token_stride,
                  sizes.head_dim, static_cast<int32_t>(piece), kNoWindow, scale, softcap);
  }
  void join(const LaunchShape& shape) {
    constexpr int64_t kElements = 8;  // of a row, a thread
    const int64_t wanted = sizes.heads * sizes.head_dim / kElements;
    launch_kernel_for(at::kBFloat16, "retort_paged_decode_join", device,
                      {.grid_x = ceil_div(wanted, shape.threads),
                       .grid_y = sizes.sequences,
                       .block = shape.threads},
                      static_cast<const float*>(maxima()), static_cast<const float*>(weights()),
                      static_cast<const float*>(sums()), read_address(lengths), write_address(y),
                      static_cast<int32_t>(sizes.heads), static_cast<int32_t>(sizes.head_dim),
                      static_cast<int32_t>(num_pieces), static_cast<int32_t>(piece), kNoWindow);
  }
  std::string size() const {
    return std::to_string(sizes.sequences) + " sequences of " + std::to_string(sizes.keys) +
           " keys, " + std::to_string(sizes.heads) + " / " + std::to_string(sizes.kv_heads) +
           " heads of " + std::to_string(sizes.head_dim) + ", bf16";
  }
  // Of keys and values.
  double cache_bytes() const {
    return 4.0 * static_cast<double>(sizes.sequences * sizes.keys * sizes.kv_heads) *
           static_cast<double>(sizes.head_dim);
  }
  // Of the partial sums that the join reads.
  double piece_bytes() const {
    return 4.0 * static_cast<double>(sizes.sequences * sizes.heads * num_pieces) *
           static_cast<double>(sizes.head_dim);
  }

  static constexpr int32_t kNoWindow = 0;
  at::Device device;
  SweepSizes sizes;
  int64_t blocks;  // of a sequence
  at::Tensor q, keys, values, y, tables, lengths, scratch;
  int64_t num_pieces = 0, piece = 0;  // of the last launch

 private:
  at::TensorOptions ints() const { return at::TensorOptions(at::kInt).device(device); }
  at::Tensor random(const std::vector<int64_t>& size) const {
    return at::randn(size, at::TensorOptions(device)).to(at::kBFloat16);
  }
  std::vector<int64_t> cache_size() const {
    return {sizes.sequences * blocks * kBlockTokens, sizes.kv_heads, sizes.head_dim};
  }
  int64_t places() const { return sizes.sequences * sizes.heads * num_pieces; }
  float* sums() { return scratch.mutable_data_ptr<float>(); }
  float* maxima() { return sums() + places() * sizes.head_dim; }
  float* weights() { return maxima() + places(); }
};
using DecodePointer = std::shared_ptr<Decode>;

SweptKernel pieces(const DecodePointer& x) {
  const auto run = [x](const LaunchShape& shape, int64_t) {
    x->run_pieces(shape);
    x->join(launch_shape(ShapedKernel::kPagedDecodeJoin, x->device));
  };
  return {.row = ShapedKernel::kPagedDecode,
          .size = x->size() + ", with its join",
          .bytes = x->cache_bytes(),
          .others = {{.threads = 64, .share = 256},
                     {.threads = 256, .share = 256},
                     {.threads = 128, .share = 128},
                     {.threads = 128, .share = 512},
                     {.threads = 64, .share = 128},
                     {.threads = 64, .share = 512}},
          .run = run,
          .result = [x] { return x->y.clone(); },
          .outputs = [x] { return std::vector{x->y, x->scratch}; }};
}

SweptKernel joined(const DecodePointer& x) {
  x->run_pieces(launch_shape(ShapedKernel::kPagedDecode, x->device));
  return {.row = ShapedKernel::kPagedDecodeJoin,
          .size = x->size(),
          .bytes = x->piece_bytes(),
          .others = {{.threads = 32}, {.threads = 64}, {.threads = 256}},
          .run = [x](const LaunchShape& shape, int64_t) { x->join(shape); },
          .result = [x] { return x->y.clone(); },
          .outputs = [x] { return std::vector{x->y}; }};
}

}  // namespace

std::vector<SweptKernel> decode_kernels(const SweepOptions& options) {
  // Each has memory of its own: the join reads what the pieces have left before.
  return {pieces(std::make_shared<Decode>(options)), joined(std::make_shared<Decode>(options))};
}

}  // namespace retort::kernels::sweep

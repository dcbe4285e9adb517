#include "models/generation/paged_decode.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "kernels/device_kernels.h"
#include "kernels/launch_shapes.h"

namespace retort::models {
namespace {

using at::Tensor;
using kernels::ceil_div;
using kernels::read_address;
using kernels::write_address;

constexpr int64_t kMaxGrid = 65535;  // of a grid's second dimension

// How many heads of a group read a key together: those for which there is a kernel.
int64_t heads_together(at::ScalarType dtype, int64_t group) {
  if (dtype == at::kFloat) return 4;
  return group <= 2 ? 2 : (group <= 4 ? 4 : 8);
}

// Blocks of threads for one piece of one sequence.
int64_t blocks_of_piece(const Tensor& keys, int64_t heads) {
  const int64_t group = heads / keys.size(1);
  return keys.size(1) * ceil_div(group, heads_together(keys.scalar_type(), group));
}

// A few hundred blocks of threads fill a device. Where sequences are few, smaller pieces make more
// of them.
int64_t piece_for(int64_t blocks, int64_t longest, int64_t largest) {
  constexpr int64_t kSmallest = 64;
  constexpr int64_t kEnough = 512;
  int64_t piece = largest;
  while (piece > kSmallest && blocks * ceil_div(longest, piece) < kEnough)
    piece /= 2;
  return piece;
}

}  // namespace

bool decode_has_kernels(const Tensor& keys) {
  const int64_t dim = keys.size(2);
  const bool is_dtype = keys.scalar_type() == at::kFloat || keys.scalar_type() == at::kBFloat16;
  return kernels::device_kernels(keys.device()) != nullptr && is_dtype &&
         (dim == 64 || dim == 128 || dim == 256);
}

int64_t max_decoded_sequences(const Tensor& keys, int64_t heads) {
  return kMaxGrid / blocks_of_piece(keys, heads);
}

void paged_decode(const Tensor& q, const PagedCache& cache, const PagedSequences& sequences,
                  const DecodeScores& scores, Tensor y) {
  const int64_t count = q.size(0);
  const int64_t heads = q.size(1);
  const int64_t dim = q.size(2);
  const int64_t kv_heads = cache.keys.size(1);
  const int64_t blocks = count * blocks_of_piece(cache.keys, heads);
  RETORT_CHECK(q.is_contiguous() && y.is_contiguous() && blocks <= kMaxGrid)
      << "queries of " << count << " sequences";

  // A window touches one piece more than it fills, wherever it begins.
  const int64_t window = scores.window;
  const bool is_cut = window > 0 && window < sequences.longest;
  const int64_t seen = is_cut ? window : sequences.longest;
  const kernels::LaunchShape& shape =
      kernels::launch_shape(kernels::ShapedKernel::kPagedDecode, q.device());
  const int64_t piece = piece_for(blocks, seen, shape.share);
  const int64_t num_pieces =
      std::min(ceil_div(sequences.longest, piece), ceil_div(seen, piece) + (is_cut ? 1 : 0));

  // What the pieces leave for the join: their weighted sums, maxima and sums of weights. No place
  // is read that was not written.
  const int64_t places = count * heads * num_pieces;
  Tensor scratch = at::empty({places * (dim + 2)}, q.options().dtype(at::kFloat));
  auto* const sums = scratch.mutable_data_ptr<float>();
  float* const maxima = sums + places * dim;
  float* const weights = maxima + places;

  const auto int_heads = static_cast<int32_t>(heads);
  const auto int_dim = static_cast<int32_t>(dim);
  const auto int_piece = static_cast<int32_t>(piece);
  const auto int_window = static_cast<int32_t>(is_cut ? window : 0);
  const int64_t token_stride = kv_heads * dim;
  const at::ScalarType dtype = q.scalar_type();
  const std::string suffix = dtype == at::kBFloat16 ? "_bf16" : "_f32";
  const std::string pieces_kernel = "retort_paged_decode" + suffix + "_g" +
                                    std::to_string(heads_together(dtype, heads / kv_heads));
  kernels::DeviceKernels& there = *kernels::device_kernels(q.device());
  kernels::launch_kernel(
      there, q.device(),
      {.name = pieces_kernel.c_str(),
       .grid_x = num_pieces,
       .grid_y = blocks,
       .block = shape.threads},
      read_address(q), read_address(cache.keys), read_address(cache.values),
      read_address(sequences.tables), read_address(sequences.lengths), maxima, weights, sums,
      int_heads, static_cast<int32_t>(kv_heads), int_dim,
      static_cast<int32_t>(sequences.tables.size(1)), static_cast<int32_t>(cache.block_tokens),
      cache.block_tokens * token_stride, token_stride, dim, int_piece, int_window,
      static_cast<float>(scores.scale), static_cast<float>(scores.softcap));

  constexpr int64_t kElements = 8;  // of a row of heads * dim, a thread
  const int64_t threads =
      kernels::launch_shape(kernels::ShapedKernel::kPagedDecodeJoin, q.device()).threads;
  kernels::launch_kernel_for(
      dtype, "retort_paged_decode_join", q.device(),
      {.grid_x = ceil_div(heads * dim / kElements, threads), .grid_y = count, .block = threads},
      static_cast<const float*>(maxima), static_cast<const float*>(weights),
      static_cast<const float*>(sums), read_address(sequences.lengths), write_address(y), int_heads,
      int_dim, static_cast<int32_t>(num_pieces), int_piece, int_window);
}

}  // namespace retort::models

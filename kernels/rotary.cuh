// K6: the norm of each head of q and k (Qwen3, Gemma 3; none for Llama) and their rotation in one
// pass, and its gradient. For a head x [dim] of a row with the angles cos, sin [half]:
//
//   n = x rstd (w + offset), rstd = 1 / sqrt(mean(x^2) + eps); without weights n = x
//   y[i] = n[i] cos[i] - n[i + half] sin[i];  y[i + half] = n[i + half] cos[i] + n[i] sin[i]
//   y[j] = n[j] for j >= 2 half
//
// Backward turns the gradient back by the transpose, then u = (w + offset) h, c = rstd^2 mean(u x),
// dx = rstd (u - x c), dw = sum of h x rstd. rstd is computed again: x is read there anyway, so
// that a saved one would only add bytes. All is float32 within and rounded once, at the end; cos
// and sin are not rounded. (ATen's operators round to bf16 the norm's result, cos, sin and each
// product.)
//
// Layout: q [rows, heads, dim], k [rows, kv_heads, dim], a row of each `stride` elements behind the
// one before, so that they may be slices of one product; cos, sin [rows, half] float32 contiguous;
// dim even and at most 256, half at most dim / 2. Weights [dim] of the dtype of q, both or none.
//
// Launch: `passes` is how often a warp takes its 32 / lanes heads of a row (of q, or of k) before
// it goes on to another row: more keep cos and sin in registers for longer, fewer give more warps.
// warps = blocks * blockDim.x / 32 stride over rows * ceil(all passes / passes), below 2^31.
#pragma once

#include "kernels/rotary_heads.cuh"

namespace retort::kernels {

template <class T>
struct QkNormRope {
  const T* q;
  const T* k;
  const T* q_weight;  // null: no norm
  const T* k_weight;
  const float* cos;
  const float* sin;
  T* q_out;
  T* k_out;
  HeadShape shape;
  int64 q_stride, k_stride, q_out_stride, k_out_stride;
  float eps;
  float offset;
  int passes;
};

template <int kVec, int kPlaces, class T>
__device__ inline void qk_norm_rope_heads(const QkNormRope<T>& c) {
  const HeadShape& shape = c.shape;
  const HeadLanes work = head_lanes<kVec>(shape.dim, shape.half);
  HeadPlace places[kPlaces];
#pragma unroll
  for (int p = 0; p < kPlaces; ++p)
    places[p] = head_place<kVec>(work.lane + p * work.lanes, shape.dim, shape.half);

  const int q_passes = (shape.heads + work.together - 1) / work.together;
  const int all_passes = q_passes + (shape.kv_heads + work.together - 1) / work.together;
  const uint32 parts = (all_passes + c.passes - 1) / c.passes;
  const uint32 tasks = static_cast<uint32>(shape.rows) * parts;
  const uint32 warps = blockDim.x / kWarp;
  for (uint32 task = blockIdx.x * warps + threadIdx.x / kWarp; task < tasks;
       task += gridDim.x * warps) {
    const int64 row = task / parts;
    const int first_pass = static_cast<int>(task % parts) * c.passes;
    const int end_pass = first_pass + c.passes < all_passes ? first_pass + c.passes : all_passes;
    // cos and sin of the row stay in registers over all passes of the task.
    HeadAngles<kVec, kPlaces> angles;
    angles.read(c.cos + row * shape.half, c.sin + row * shape.half, places);

#pragma unroll 1
    for (int pass = first_pass; pass < end_pass; ++pass) {
      const bool is_q = pass < q_passes;
      const int head = (is_q ? pass : pass - q_passes) * work.together + work.slot;
      const bool active = head < (is_q ? shape.heads : shape.kv_heads);
      const int64 from = row * (is_q ? c.q_stride : c.k_stride) + int64{head} * shape.dim;
      const int64 to = row * (is_q ? c.q_out_stride : c.k_out_stride) + int64{head} * shape.dim;
      const T* weight = is_q ? c.q_weight : c.k_weight;

      // Lanes without a head go on with zeros, because the sums need all lanes of the warp.
      HeadValues<kVec, kPlaces> x;
      x.clear();
      if (active) x.read((is_q ? c.q : c.k) + from, places);
      if (weight != nullptr) {
        HeadValues<kVec, kPlaces> w;
        w.clear();
        w.read(weight, places);
        float squares = 0;
#pragma unroll
        for (int p = 0; p < kPlaces; ++p)
          for (int i = 0; i < kVec; ++i)
            squares += x.first[p][i] * x.first[p][i] + x.second[p][i] * x.second[p][i];
        const float mean = head_sum(squares, work.lanes) / static_cast<float>(shape.dim);
        const float rstd = rsqrtf(mean + c.eps);
#pragma unroll
        for (int p = 0; p < kPlaces; ++p)
          for (int i = 0; i < kVec; ++i) {
            x.first[p][i] *= rstd * (w.first[p][i] + c.offset);
            x.second[p][i] *= rstd * (w.second[p][i] + c.offset);
          }
      }
      angles.turn(x, 1, places);
      if (active) x.write((is_q ? c.q_out : c.k_out) + to, places);
    }
  }
}

template <class T>
__device__ inline void qk_norm_rope(const QkNormRope<T>& c) {
  // All strides, and all addresses, are multiples of a power of two if their bits together are.
  const int64 strides = c.q_stride | c.k_stride | c.q_out_stride | c.k_out_stride;
  const uint64 addresses = address_of(c.q) | address_of(c.k) | address_of(c.q_weight) |
                           address_of(c.k_weight) | address_of(c.cos) | address_of(c.sin) |
                           address_of(c.q_out) | address_of(c.k_out);
  if (heads_packed<T>(c.shape, strides, addresses)) {
    qk_norm_rope_heads<Pack<T>::kSize, 1>(c);
  } else {
    qk_norm_rope_heads<1, kMaxHeadDim / 2 / kWarp>(c);
  }
}

template <class T>
struct QkNormRopeBackward {
  const T* dq;
  const T* dk;
  const T* q;  // with weights alone
  const T* k;
  const T* q_weight;
  const T* k_weight;
  const float* cos;
  const float* sin;
  T* dq_in;
  T* dk_in;
  float* dw;  // [blocks, 2, dim]: of q_weight, of k_weight; null: not wanted
  HeadShape shape;
  int64 dq_stride, dk_stride, q_stride, k_stride, dq_in_stride, dk_in_stride;
  float eps;
  float offset;
  int passes;
};

// Turns the gradient h of the norm's result, with x, into that of x, which takes h's place. Adds to
// dw what the head gives.
template <int kVec, int kPlaces, class T>
__device__ inline void head_norm_backward(HeadValues<kVec, kPlaces>& h,
                                          const HeadValues<kVec, kPlaces>& x, const T* weight,
                                          const HeadPlace (&places)[kPlaces], float eps,
                                          float offset, int dim, int lanes,
                                          HeadValues<kVec, kPlaces>& dw) {
  float squares = 0;
#pragma unroll
  for (int p = 0; p < kPlaces; ++p)
    for (int i = 0; i < kVec; ++i)
      squares += x.first[p][i] * x.first[p][i] + x.second[p][i] * x.second[p][i];
  const float rstd = rsqrtf(head_sum(squares, lanes) / static_cast<float>(dim) + eps);

  // u takes the place of h.
  HeadValues<kVec, kPlaces> w;
  w.clear();
  w.read(weight, places);
  float product = 0;
#pragma unroll
  for (int p = 0; p < kPlaces; ++p)
    for (int i = 0; i < kVec; ++i) {
      dw.first[p][i] += h.first[p][i] * x.first[p][i] * rstd;
      dw.second[p][i] += h.second[p][i] * x.second[p][i] * rstd;
      h.first[p][i] *= w.first[p][i] + offset;
      h.second[p][i] *= w.second[p][i] + offset;
      product += h.first[p][i] * x.first[p][i] + h.second[p][i] * x.second[p][i];
    }
  const float c = rstd * rstd * (head_sum(product, lanes) / static_cast<float>(dim));
#pragma unroll
  for (int p = 0; p < kPlaces; ++p)
    for (int i = 0; i < kVec; ++i) {
      h.first[p][i] = rstd * (h.first[p][i] - x.first[p][i] * c);
      h.second[p][i] = rstd * (h.second[p][i] - x.second[p][i] * c);
    }
}

// Adds what the warp's heads gave, which lies in lanes `lanes` apart, then warp after warp into
// `total` [dim]. All threads of the block call it.
template <int kVec, int kPlaces>
__device__ inline void add_warps(HeadValues<kVec, kPlaces>& dw, const HeadLanes& work,
                                 const HeadPlace (&places)[kPlaces], float* total) {
  for (int offset = work.lanes; offset < kWarp; offset *= 2) {
#pragma unroll
    for (int p = 0; p < kPlaces; ++p)
      for (int i = 0; i < kVec; ++i) {
        dw.first[p][i] += __shfl_xor_sync(kAllLanes, dw.first[p][i], offset);
        dw.second[p][i] += __shfl_xor_sync(kAllLanes, dw.second[p][i], offset);
      }
  }
#pragma unroll 1
  for (int turn = 0; turn < static_cast<int>(blockDim.x) / kWarp; ++turn) {
    if (static_cast<int>(threadIdx.x) / kWarp == turn && work.slot == 0) {
#pragma unroll
      for (int p = 0; p < kPlaces; ++p)
        for (int i = 0; i < kVec; ++i) {
          float* one = total + places[p].first + i;
          float* other = total + places[p].second + i;
          if (places[p].first >= 0) *one = (turn == 0 ? 0.f : *one) + dw.first[p][i];
          if (places[p].second >= 0) *other = (turn == 0 ? 0.f : *other) + dw.second[p][i];
        }
    }
    __syncthreads();
  }
}

template <int kVec, int kPlaces, class T>
__device__ inline void qk_norm_rope_backward_heads(const QkNormRopeBackward<T>& c, float* total) {
  const HeadShape& shape = c.shape;
  const HeadLanes work = head_lanes<kVec>(shape.dim, shape.half);
  HeadPlace places[kPlaces];
#pragma unroll
  for (int p = 0; p < kPlaces; ++p)
    places[p] = head_place<kVec>(work.lane + p * work.lanes, shape.dim, shape.half);
  HeadValues<kVec, kPlaces> dw_q, dw_k;
  dw_q.clear();
  dw_k.clear();

  const int q_passes = (shape.heads + work.together - 1) / work.together;
  const int all_passes = q_passes + (shape.kv_heads + work.together - 1) / work.together;
  const uint32 parts = (all_passes + c.passes - 1) / c.passes;
  const uint32 tasks = static_cast<uint32>(shape.rows) * parts;
  const uint32 warps = blockDim.x / kWarp;
  for (uint32 task = blockIdx.x * warps + threadIdx.x / kWarp; task < tasks;
       task += gridDim.x * warps) {
    const int64 row = task / parts;
    const int first_pass = static_cast<int>(task % parts) * c.passes;
    const int end_pass = first_pass + c.passes < all_passes ? first_pass + c.passes : all_passes;
    HeadAngles<kVec, kPlaces> angles;
    angles.read(c.cos + row * shape.half, c.sin + row * shape.half, places);

#pragma unroll 1
    for (int pass = first_pass; pass < end_pass; ++pass) {
      const bool is_q = pass < q_passes;
      const int head = (is_q ? pass : pass - q_passes) * work.together + work.slot;
      const bool active = head < (is_q ? shape.heads : shape.kv_heads);
      const int64 inside = int64{head} * shape.dim;
      const T* weight = is_q ? c.q_weight : c.k_weight;

      HeadValues<kVec, kPlaces> h, x;
      h.clear();
      x.clear();
      if (active) {
        h.read((is_q ? c.dq + row * c.dq_stride : c.dk + row * c.dk_stride) + inside, places);
        if (weight != nullptr)
          x.read((is_q ? c.q + row * c.q_stride : c.k + row * c.k_stride) + inside, places);
      }
      angles.turn(h, -1, places);
      if (weight != nullptr) {
        if (is_q) {
          head_norm_backward(h, x, weight, places, c.eps, c.offset, shape.dim, work.lanes, dw_q);
        } else {
          head_norm_backward(h, x, weight, places, c.eps, c.offset, shape.dim, work.lanes, dw_k);
        }
      }
      if (active)
        h.write((is_q ? c.dq_in + row * c.dq_in_stride : c.dk_in + row * c.dk_in_stride) + inside,
                places);
    }
  }

  // Each block writes a row of its own, so that the order of the sum over blocks is fixed.
  if (c.dw == nullptr) return;
  add_warps(dw_q, work, places, total);
  add_warps(dw_k, work, places, total + shape.dim);
  for (int i = static_cast<int>(threadIdx.x); i < 2 * shape.dim; i += blockDim.x)
    c.dw[int64{blockIdx.x} * 2 * shape.dim + i] = total[i];
}

template <class T>
__device__ inline void qk_norm_rope_backward(const QkNormRopeBackward<T>& c) {
  __shared__ float total[2 * kMaxHeadDim];
  const int64 strides =
      c.dq_stride | c.dk_stride | c.q_stride | c.k_stride | c.dq_in_stride | c.dk_in_stride;
  const uint64 addresses = address_of(c.dq) | address_of(c.dk) | address_of(c.q) | address_of(c.k) |
                           address_of(c.q_weight) | address_of(c.k_weight) | address_of(c.cos) |
                           address_of(c.sin) | address_of(c.dq_in) | address_of(c.dk_in);
  if (heads_packed<T>(c.shape, strides, addresses)) {
    qk_norm_rope_backward_heads<Pack<T>::kSize, 1>(c, total);
  } else {
    qk_norm_rope_backward_heads<1, kMaxHeadDim / 2 / kWarp>(c, total);
  }
}

}  // namespace retort::kernels

// Outputs may lie where the inputs do (with the same strides): a lane has read what it writes.
// Bytes a row in bf16: 4 (q + kv) and 8 half of cos and sin. Launch: blocks of at most 256
// threads, at most as many as there are tasks for their warps. H100, 2026-11-26, bf16, 8192 rows of
// 16 + 8 heads of 128: 64 threads, 3 passes, 8,192 blocks 2,280 GB/s, without norm 2,480 (128
// threads and 4,096 blocks 2,250 and 2,441; ATen 338 and 564).
extern "C" __global__ void __launch_bounds__(256, 2) retort_qk_norm_rope_bf16(
    const retort::kernels::Bf16* q, const retort::kernels::Bf16* k,
    const retort::kernels::Bf16* q_weight, const retort::kernels::Bf16* k_weight, const float* cos,
    const float* sin, retort::kernels::Bf16* q_out, retort::kernels::Bf16* k_out, long long rows,
    int heads, int kv_heads, int dim, int half, long long q_stride, long long k_stride,
    long long q_out_stride, long long k_out_stride, float eps, float offset, int passes) {
  retort::kernels::qk_norm_rope<retort::kernels::Bf16>({q,
                                                        k,
                                                        q_weight,
                                                        k_weight,
                                                        cos,
                                                        sin,
                                                        q_out,
                                                        k_out,
                                                        {rows, heads, kv_heads, dim, half},
                                                        q_stride,
                                                        k_stride,
                                                        q_out_stride,
                                                        k_out_stride,
                                                        eps,
                                                        offset,
                                                        passes});
}

extern "C" __global__ void __launch_bounds__(256, 2)
    retort_qk_norm_rope_f32(const float* q, const float* k, const float* q_weight,
                            const float* k_weight, const float* cos, const float* sin, float* q_out,
                            float* k_out, long long rows, int heads, int kv_heads, int dim,
                            int half, long long q_stride, long long k_stride,
                            long long q_out_stride, long long k_out_stride, float eps, float offset,
                            int passes) {
  retort::kernels::qk_norm_rope<float>({q,
                                        k,
                                        q_weight,
                                        k_weight,
                                        cos,
                                        sin,
                                        q_out,
                                        k_out,
                                        {rows, heads, kv_heads, dim, half},
                                        q_stride,
                                        k_stride,
                                        q_out_stride,
                                        k_out_stride,
                                        eps,
                                        offset,
                                        passes});
}

// dw [blocks, 2, dim] is added up by retort_column_sum with width 2 dim; all of it is written, also
// without rows. dq_in, dk_in may be dq, dk. Without weights q and k are not read. Bytes a row in
// bf16: 6 (q + kv), without weights 4 (q + kv), and 8 half. Launch: as above; 2 to 8 blocks a
// multiprocessor, as each writes 8 dim bytes of dw; the bits of dw are those of the launch's shape.
// H100, 2026-11-26, as above: 128 threads, 3 passes, 528 blocks 2,120 GB/s, with the column sum
// 1,984, without norm 2,368 (ATen's norm and rotation 274). Since then the norm's two sums over the
// lanes follow each other, for want of registers.
extern "C" __global__ void __launch_bounds__(256, 2) retort_qk_norm_rope_backward_bf16(
    const retort::kernels::Bf16* dq, const retort::kernels::Bf16* dk,
    const retort::kernels::Bf16* q, const retort::kernels::Bf16* k,
    const retort::kernels::Bf16* q_weight, const retort::kernels::Bf16* k_weight, const float* cos,
    const float* sin, retort::kernels::Bf16* dq_in, retort::kernels::Bf16* dk_in, float* dw,
    long long rows, int heads, int kv_heads, int dim, int half, long long dq_stride,
    long long dk_stride, long long q_stride, long long k_stride, long long dq_in_stride,
    long long dk_in_stride, float eps, float offset, int passes) {
  retort::kernels::qk_norm_rope_backward<retort::kernels::Bf16>(
      {dq,        dk,        q,        k,        q_weight,     k_weight,
       cos,       sin,       dq_in,    dk_in,    dw,           {rows, heads, kv_heads, dim, half},
       dq_stride, dk_stride, q_stride, k_stride, dq_in_stride, dk_in_stride,
       eps,       offset,    passes});
}

extern "C" __global__ void __launch_bounds__(256, 2)
    retort_qk_norm_rope_backward_f32(const float* dq, const float* dk, const float* q,
                                     const float* k, const float* q_weight, const float* k_weight,
                                     const float* cos, const float* sin, float* dq_in, float* dk_in,
                                     float* dw, long long rows, int heads, int kv_heads, int dim,
                                     int half, long long dq_stride, long long dk_stride,
                                     long long q_stride, long long k_stride, long long dq_in_stride,
                                     long long dk_in_stride, float eps, float offset, int passes) {
  retort::kernels::qk_norm_rope_backward<float>(
      {dq,        dk,        q,        k,        q_weight,     k_weight,
       cos,       sin,       dq_in,    dk_in,    dw,           {rows, heads, kv_heads, dim, half},
       dq_stride, dk_stride, q_stride, k_stride, dq_in_stride, dk_in_stride,
       eps,       offset,    passes});
}

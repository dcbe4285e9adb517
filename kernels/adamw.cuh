// K8: one step of AdamW over many tensors in one pass, which also writes the bf16 weights of the
// float32 masters. The arithmetic is that of torch's fused kernel (2.11, fused_adam_utils.cuh) with
// its roundings, so that without a scale the results have its bits:
//
//   g = grad * scale;  p = p - (lr * weight_decay) p;  m = fma(beta1, m, fma(-beta1, g, g))
//   v = fma(beta2, v, fma(-beta2, g g, g g))
//   p = p - (lr / bias1) m / (sqrt(v) / bias2_sqrt + eps);  weight = round(p)
//
// with bias1 = 1 - beta1^step and bias2_sqrt = sqrt(1 - beta2^step). Gradients are only read. Bytes
// a parameter: 30, without bf16 weights 28.
#pragma once

#include "kernels/device.cuh"

namespace retort::kernels {

// A tensor of the table in the device's memory; the host writes the same 56 bytes.
struct AdamwTensor {
  float* master;
  float* exp_avg;
  float* exp_avg_sq;
  const float* grad;
  Bf16* weight;        // null: the parameter is its own master
  int64 count;         // elements
  float weight_decay;  // 0: none
  int32 unused;
};

// A chunk is what one block updates: [begin, begin + chunk size) of a tensor, or what there is of
// it.
struct AdamwChunk {
  int64 tensor;
  int64 begin;  // a multiple of 4
};

struct AdamwFactors {
  float learning_rate, beta1, beta2, eps, bias1, bias2_sqrt, scale;
};

__device__ inline void adamw_element(const AdamwFactors& f, float decay, float step_size,
                                     float grad, float& p, float& m, float& v) {
  const float g = grad * f.scale;
  if (decay != 0) p = fmaf(-decay, p, p);
  m = fmaf(f.beta1, m, fmaf(-f.beta1, g, g));
  v = fmaf(f.beta2, v, fmaf(-f.beta2, g * g, g * g));
  p -= step_size * m / (sqrtf(v) / f.bias2_sqrt + f.eps);
}

struct alignas(8) FourBf16 {
  Bf16 v[4];
};

__device__ inline void adamw(const AdamwTensor* tensors, const AdamwChunk* chunks, int64 chunk_size,
                             const AdamwFactors& f) {
  constexpr int kSize = Pack<float>::kSize;
  constexpr int kFlight = 2;  // packs of each array that a thread loads at once
  const AdamwChunk chunk = chunks[blockIdx.x];
  const AdamwTensor t = tensors[chunk.tensor];
  const int64 left = t.count - chunk.begin;
  const int count = static_cast<int>(left < chunk_size ? left : chunk_size);
  float* master = t.master + chunk.begin;
  float* exp_avg = t.exp_avg + chunk.begin;
  float* exp_avg_sq = t.exp_avg_sq + chunk.begin;
  const float* grad = t.grad + chunk.begin;
  Bf16* weight = t.weight != nullptr ? t.weight + chunk.begin : nullptr;
  const float decay = f.learning_rate * t.weight_decay;
  const float step_size = f.learning_rate / f.bias1;

  const uint64 wide = reinterpret_cast<uint64>(master) | reinterpret_cast<uint64>(exp_avg) |
                      reinterpret_cast<uint64>(exp_avg_sq) | reinterpret_cast<uint64>(grad);
  const bool aligned = (wide & 15) == 0 && (reinterpret_cast<uint64>(weight) & 7) == 0;
  const int packs = aligned ? count / kSize : 0;
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  for (int first = thread; first < packs; first += kFlight * threads) {
    Pack<float> p[kFlight], m[kFlight], v[kFlight], g[kFlight];
#pragma unroll
    for (int j = 0; j < kFlight; ++j) {
      const int at = (first + j * threads) * kSize;
      if (first + j * threads >= packs) continue;
      g[j] = load_pack(grad + at);
      p[j] = load_pack(master + at);
      m[j] = load_pack(exp_avg + at);
      v[j] = load_pack(exp_avg_sq + at);
    }
#pragma unroll
    for (int j = 0; j < kFlight; ++j) {
      const int at = (first + j * threads) * kSize;
      if (first + j * threads >= packs) continue;
      FourBf16 narrowed;
      for (int i = 0; i < kSize; ++i) {
        adamw_element(f, decay, step_size, g[j].v[i], p[j].v[i], m[j].v[i], v[j].v[i]);
        narrowed.v[i] = narrow<Bf16>(p[j].v[i]);
      }
      store_pack(master + at, p[j]);
      store_pack(exp_avg + at, m[j]);
      store_pack(exp_avg_sq + at, v[j]);
      if (weight != nullptr) *reinterpret_cast<FourBf16*>(weight + at) = narrowed;
    }
  }

  for (int i = packs * kSize + thread; i < count; i += threads) {
    float p = master[i];
    float m = exp_avg[i];
    float v = exp_avg_sq[i];
    adamw_element(f, decay, step_size, grad[i], p, m, v);
    master[i] = p;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    if (weight != nullptr) weight[i] = narrow<Bf16>(p);
  }
}

}  // namespace retort::kernels

// `scale` is one float on the device, or null for 1. Launch: a block a chunk; blocks of at most
// 512; chunk_size below 2^31, a multiple of 8 * blockDim.x to waste nothing, of 4 to keep
// alignment. H100, 2026-11-26, 269 million parameters: 512 threads, chunks of 4,096 2,997 GB/s
// (others 2,844 to 2,916; ATen's fused step and the copies 2,316).
extern "C" __global__ void __launch_bounds__(512)
    retort_adamw(const retort::kernels::AdamwTensor* tensors,
                 const retort::kernels::AdamwChunk* chunks, long long chunk_size,
                 const float* scale, float learning_rate, float beta1, float beta2, float eps,
                 float bias1, float bias2_sqrt) {
  const retort::kernels::AdamwFactors factors{
      learning_rate, beta1, beta2, eps, bias1, bias2_sqrt, scale != nullptr ? *scale : 1.f};
  retort::kernels::adamw(tensors, chunks, chunk_size, factors);
}

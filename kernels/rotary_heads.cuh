// How the heads of rotary.cuh lie over the lanes of a warp.
//
// A head is the work of 2 to 32 lanes: a lane has a pack of the head's first half and the one that
// is turned with it, so that a pair of elements never leaves its lane. Where the packs do not fit
// (dim, half or a stride no multiple of 8 in bf16, of 4 in float32, or an address) a lane goes by
// elements, up to 4 pairs of them.
#pragma once

#include "kernels/device.cuh"

namespace retort::kernels {

constexpr int kMaxHeadDim = 256;

// kVec neighbours as float32.
template <int kVec, class T>
__device__ inline void read_some(const T* address, float (&x)[kVec]) {
  if constexpr (kVec % Pack<T>::kSize == 0) {
    for (int i = 0; i < kVec; i += Pack<T>::kSize) {
      const Pack<T> pack = load_pack(address + i);
      for (int j = 0; j < Pack<T>::kSize; ++j)
        x[i + j] = widen(pack.v[j]);
    }
  } else {
    for (int i = 0; i < kVec; ++i)
      x[i] = widen(address[i]);
  }
}

template <int kVec, class T>
__device__ inline void write_some(T* address, const float (&x)[kVec]) {
  if constexpr (kVec % Pack<T>::kSize == 0) {
    for (int i = 0; i < kVec; i += Pack<T>::kSize) {
      Pack<T> pack;
      for (int j = 0; j < Pack<T>::kSize; ++j)
        pack.v[j] = narrow<T>(x[i + j]);
      store_pack(address + i, pack);
    }
  } else {
    for (int i = 0; i < kVec; ++i)
      address[i] = narrow<T>(x[i]);
  }
}

// The two places of a head that a lane works on: those that turn with one another, or two
// neighbours of those behind, which do not turn.
struct HeadPlace {
  int first;   // element; below 0: none
  int second;  // the same
  bool turns;
};

template <int kVec>
__device__ inline HeadPlace head_place(int index, int dim, int half) {
  const int pairs = half / kVec;
  const int pieces = dim / kVec;
  if (index < pairs) return {index * kVec, (index + pairs) * kVec, true};
  const int first = 2 * pairs + 2 * (index - pairs);
  return {first < pieces ? first * kVec : -1, first + 1 < pieces ? (first + 1) * kVec : -1, false};
}

// The values of a lane's kPlaces places, by first and second; 0 where there are none.
template <int kVec, int kPlaces>
struct HeadValues {
  float first[kPlaces][kVec];
  float second[kPlaces][kVec];

  __device__ inline void clear() {
    for (int p = 0; p < kPlaces; ++p)
      for (int i = 0; i < kVec; ++i)
        first[p][i] = second[p][i] = 0;
  }
  template <class T>
  __device__ inline void read(const T* head, const HeadPlace (&places)[kPlaces]) {
#pragma unroll
    for (int p = 0; p < kPlaces; ++p) {
      if (places[p].first >= 0) read_some<kVec>(head + places[p].first, first[p]);
      if (places[p].second >= 0) read_some<kVec>(head + places[p].second, second[p]);
    }
  }
  template <class T>
  __device__ inline void write(T* head, const HeadPlace (&places)[kPlaces]) const {
#pragma unroll
    for (int p = 0; p < kPlaces; ++p) {
      if (places[p].first >= 0) write_some<kVec>(head + places[p].first, first[p]);
      if (places[p].second >= 0) write_some<kVec>(head + places[p].second, second[p]);
    }
  }
};

// How a warp divides heads among its lanes.
struct HeadLanes {
  int lanes;     // of a head, a power of 2
  int lane;      // of this thread
  int slot;      // which of the warp's heads is this thread's
  int together;  // heads of a warp
};

template <int kVec>
__device__ inline HeadLanes head_lanes(int dim, int half) {
  const int places = half / kVec + (dim / kVec - 2 * (half / kVec) + 1) / 2;
  int lanes = 1;
  while (lanes < places && lanes < kWarp)
    lanes *= 2;
  const int thread = static_cast<int>(threadIdx.x) % kWarp;
  return {lanes, thread % lanes, thread / lanes, kWarp / lanes};
}

// The sum over a head's lanes. All lanes of the warp call it.
__device__ inline float head_sum(float x, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2)
    x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}

// The shapes that forward and backward share.
struct HeadShape {
  int64 rows;
  int heads;
  int kv_heads;
  int dim;
  int half;
};

// cos and sin of a row at a lane's places.
template <int kVec, int kPlaces>
struct HeadAngles {
  float cos[kPlaces][kVec];
  float sin[kPlaces][kVec];

  __device__ inline void read(const float* cos_row, const float* sin_row,
                              const HeadPlace (&places)[kPlaces]) {
#pragma unroll
    for (int p = 0; p < kPlaces; ++p) {
      for (int i = 0; i < kVec; ++i) {
        cos[p][i] = 1;
        sin[p][i] = 0;
      }
      if (!places[p].turns) continue;
      read_some<kVec>(cos_row + places[p].first, cos[p]);
      read_some<kVec>(sin_row + places[p].first, sin[p]);
    }
  }
  // Multiplies each pair by the rotation, or where `sign` is -1 by its transpose. What does not
  // turn is left alone: 0 times an infinite neighbour would be NaN.
  __device__ inline void turn(HeadValues<kVec, kPlaces>& x, float sign,
                              const HeadPlace (&places)[kPlaces]) const {
#pragma unroll
    for (int p = 0; p < kPlaces; ++p) {
      if (!places[p].turns) continue;
      for (int i = 0; i < kVec; ++i) {
        const float one = x.first[p][i];
        const float other = x.second[p][i];
        const float s = sign * sin[p][i];
        x.first[p][i] = one * cos[p][i] - other * s;
        x.second[p][i] = other * cos[p][i] + one * s;
      }
    }
  }
};

// True if packs of T fit a head's halves, rows and addresses.
template <class T>
__device__ inline bool heads_packed(const HeadShape& shape, int64 strides, uint64 addresses) {
  constexpr int kSize = Pack<T>::kSize;
  return shape.dim % kSize == 0 && shape.half % kSize == 0 && strides % kSize == 0 &&
         (addresses & 15) == 0;
}

template <class P>
__device__ inline uint64 address_of(const P* pointer) {
  return reinterpret_cast<uint64>(pointer);
}

}  // namespace retort::kernels

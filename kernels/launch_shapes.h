// The launch shapes of the kernels: one table, by kernel and by the card's compute capability,
// which everything that launches a kernel asks. Its numbers are those that measured best
// (bench/kernels_bench.cc tries others); results do not depend on them but for the order of sums.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace retort::kernels {

// Rows of the table. Where a kernel is there for several dtypes one row is for all of them, unless
// the dtype stands in its name.
enum class ShapedKernel : uint8_t {
  kCeRows,
  kCeStatistics,
  kCeGradient,
  kDivergence,
  kLogProb,
  kLogProbGradient,
  kTopK,
  kSampleFew,  // below kManyDraws
  kSampleMany,
  kAddRmsNorm,
  kRmsNormBackwardBf16,
  kRmsNormBackwardF32,
  kColumnSum,
  kHeads,
  kHeadsBackward,
  kGated,
  kGatedBackward,
  kAdamw,
  kChecksum,
  kPagedDecode,
  kPagedDecodeJoin,
};
inline constexpr size_t kNumShapedKernels = 21;
// Few draws leave a device room for the most threads.
inline constexpr int64_t kManyDraws = 128;

struct LaunchShape {
  int64_t threads = 256;  // of a block, or of a row where a block has several: the most
  // What is one's own share, in the unit that launch_shapes.cc names: of a block or of a thread.
  int64_t share = 0;
  int64_t least = 0;   // threads of a block at the least, where it has several rows
  int64_t blocks = 0;  // of the grid, the most; 0: as many as there is work for
  bool operator==(const LaunchShape&) const = default;
};

// "ce_rows", "rms_norm_backward_bf16"
std::string_view name_of(ShapedKernel kernel);

// The row for cards of that compute capability (90: 9.0), else the one for all others. Any thread.
const LaunchShape& launch_shape(ShapedKernel kernel, int64_t capability);
// That of a device which has kernels.
const LaunchShape& launch_shape(ShapedKernel kernel, const at::Device& device);

// The blocks of a grid that has work for `wanted`.
int64_t grid_of(int64_t wanted, const LaunchShape& shape);

}  // namespace retort::kernels

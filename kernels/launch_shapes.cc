#include "kernels/launch_shapes.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.h"
#include "kernels/device_kernels.h"

namespace retort::kernels {
namespace {

struct Row {
  ShapedKernel kernel;
  std::string_view name;
  LaunchShape shape;
};

constexpr int64_t kKiB = 1 << 10;

// Cards for which nothing else was measured. The numbers are those of an H100 on 2026-11-26; the
// head of each .cuh file says what they gave.
constexpr std::array<Row, kNumShapedKernels> kRows{{
    // A block has a row, as long as the vocabulary. share: pieces of it that stay in shared memory,
    // as far as that holds them.
    {ShapedKernel::kCeRows, "ce_rows", {.threads = 512, .share = 7}},
    {ShapedKernel::kCeStatistics, "ce_rows_statistics", {.threads = 512}},
    {ShapedKernel::kCeGradient, "ce_rows_gradient", {.threads = 512}},
    {ShapedKernel::kDivergence, "divergence_rows", {.threads = 256}},
    {ShapedKernel::kLogProb, "log_prob_rows", {.threads = 512}},
    {ShapedKernel::kLogProbGradient, "log_prob_rows_gradient", {.threads = 512}},
    {ShapedKernel::kTopK, "top_k_rows", {.threads = 512}},
    {ShapedKernel::kSampleFew, "sample_rows_few", {.threads = 1024}},
    {ShapedKernel::kSampleMany, "sample_rows_many", {.threads = 512}},

    // share: bytes of a row in a thread. The gradients hold no less in theirs (norm_backward.cuh),
    // and each of their blocks writes partial sums, so that there are few.
    {ShapedKernel::kAddRmsNorm,
     "add_rms_norm",
     {.threads = 512, .share = 32, .least = 64, .blocks = 1 << 20}},
    {ShapedKernel::kRmsNormBackwardBf16,
     "rms_norm_backward_bf16",
     {.threads = 1024, .share = 16, .least = 256, .blocks = 528}},
    {ShapedKernel::kRmsNormBackwardF32,
     "rms_norm_backward_f32",
     {.threads = 512, .share = 64, .least = 256, .blocks = 528}},
    {ShapedKernel::kColumnSum, "column_sum", {.threads = 512}},

    // A head is the work of some lanes, so that a block has several rows. share: how many.
    {ShapedKernel::kHeads, "qk_norm_rope", {.threads = 128, .share = 2, .blocks = 1 << 20}},
    {ShapedKernel::kHeadsBackward,
     "qk_norm_rope_backward",
     {.threads = 128, .share = 2, .blocks = 528}},

    // The grid covers all elements, each of which is by itself: there is nothing to share out.
    {ShapedKernel::kGated, "gated_silu", {.threads = 256}},
    {ShapedKernel::kGatedBackward, "gated_silu_backward", {.threads = 256}},

    // What goes through all of the memory takes a piece for each block. share: elements of it for
    // adamw, bytes for checksum.
    {ShapedKernel::kAdamw, "adamw", {.threads = 512, .share = 4 * kKiB}},
    {ShapedKernel::kChecksum, "checksum", {.threads = 512, .share = 256 * kKiB}},

    // A long sequence is cut, and a second kernel joins the pieces. share: keys of one, the most.
    {ShapedKernel::kPagedDecode, "paged_decode", {.threads = 128, .share = 256}},
    {ShapedKernel::kPagedDecodeJoin, "paged_decode_join", {.threads = 128}},
}};

// Each kernel's row stands at its place.
constexpr bool is_in_order() {
  for (size_t i = 0; i < kRows.size(); ++i)
    if (kRows[i].kernel != static_cast<ShapedKernel>(i)) return false;
  return true;
}
static_assert(is_in_order());

struct CardRow {
  int64_t capability;
  ShapedKernel kernel;
  LaunchShape shape;
};

// What was measured to be better on cards of one capability: each a line of `kernels_bench --sweep`
// there. So far none was.
const std::vector<CardRow>& rows_of_cards() {
  static const std::vector<CardRow> kAll{};
  return kAll;
}

}  // namespace

std::string_view name_of(ShapedKernel kernel) { return kRows.at(static_cast<size_t>(kernel)).name; }

const LaunchShape& launch_shape(ShapedKernel kernel, int64_t capability) {
  for (const CardRow& row : rows_of_cards())
    if (row.capability == capability && row.kernel == kernel) return row.shape;
  return kRows.at(static_cast<size_t>(kernel)).shape;
}

const LaunchShape& launch_shape(ShapedKernel kernel, const at::Device& device) {
  DeviceKernels* kernels = device_kernels(device);
  RETORT_CHECK(kernels != nullptr) << "no kernels on " << device.str();
  return launch_shape(kernel, kernels->capability(device));
}

int64_t grid_of(int64_t wanted, const LaunchShape& shape) {
  return shape.blocks > 0 ? std::min(wanted, shape.blocks) : wanted;
}

}  // namespace retort::kernels

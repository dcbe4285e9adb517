// The kernels over all weights: AdamW and checksums.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device_kernels.h"
#include "tests/kernels/sweep/sweep.h"

namespace retort::kernels::sweep {
namespace {

constexpr int64_t kShown = 4096;  // elements at each end of a result

// The bytes of a table of the host, on the device.
template <class T>
at::Tensor table_there(std::vector<T> rows, const at::Device& device) {
  const auto bytes = static_cast<int64_t>(rows.size() * sizeof(T));
  return at::from_blob(rows.data(), {bytes}, at::kByte).clone().to(device);
}

// As AdamwTensor and AdamwChunk of kernels/adamw.cuh.
struct AdamwRow {
  void* master;
  void* exp_avg;
  void* exp_avg_sq;
  const void* grad;
  void* weight;
  int64_t count;
  float weight_decay;
  int32_t unused;
};
struct AdamwChunk {
  int64_t tensor, begin;
};

struct Adamw {
  explicit Adamw(const SweepOptions& options)
      : device(options.device),
        count(options.sizes.parameters),
        start(at::randn({count}, at::TensorOptions(device))),
        grad(at::randn({count}, at::TensorOptions(device))),
        master(at::empty_like(start)),
        exp_avg(at::empty_like(start)),
        exp_avg_sq(at::empty_like(start)),
        weight(at::empty({count}, start.options().dtype(at::kBFloat16))) {
    static_assert(sizeof(AdamwRow) == 56 && sizeof(AdamwChunk) == 16, "as the kernel reads them");
    const AdamwRow row{.master = write_address(master),
                       .exp_avg = write_address(exp_avg),
                       .exp_avg_sq = write_address(exp_avg_sq),
                       .grad = read_address(grad),
                       .weight = write_address(weight),
                       .count = count,
                       .weight_decay = 0.01F,
                       .unused = 0};
    table = table_there(std::vector<AdamwRow>{row}, device);
  }
  const at::Tensor& chunks_of(int64_t size) {
    at::Tensor& there = chunks[size];
    if (there.defined()) return there;
    std::vector<AdamwChunk> all;
    for (int64_t begin = 0; begin < count; begin += size)
      all.push_back({.tensor = 0, .begin = begin});
    there = table_there(std::move(all), device);
    return there;
  }
  at::Tensor shown() const {
    const int64_t some = std::min(kShown, count);
    return at::cat({master.narrow(0, 0, some), master.narrow(0, count - some, some)});
  }
  void reset() {
    master.copy_(start);
    exp_avg.zero_();
    exp_avg_sq.zero_();
  }

  at::Device device;
  int64_t count;
  at::Tensor start, grad, master, exp_avg, exp_avg_sq, weight, table;
  std::map<int64_t, at::Tensor> chunks;  // by their size
};

SweptKernel adamw(const SweepOptions& options) {
  const auto x = std::make_shared<Adamw>(options);
  const auto run = [x](const LaunchShape& shape, int64_t) {
    const void* no_scale = nullptr;
    const float learning_rate = 1e-3F, beta1 = 0.9F, beta2 = 0.999F, eps = 1e-8F, bias1 = 0.1F,
                bias2_sqrt = 0.03F;
    launch_kernel(
        *device_kernels(x->device), x->device,
        {.name = "retort_adamw", .grid_x = ceil_div(x->count, shape.share), .block = shape.threads},
        read_address(x->table), read_address(x->chunks_of(shape.share)), shape.share, no_scale,
        learning_rate, beta1, beta2, eps, bias1, bias2_sqrt);
  };
  return {.row = ShapedKernel::kAdamw,
          .size = std::to_string(x->count) + " parameters, bf16",
          .bytes = 30.0 * static_cast<double>(x->count),
          .others = {{.threads = 256, .share = 4096},
                     {.threads = 256, .share = 2048},
                     {.threads = 512, .share = 8192},
                     {.threads = 512, .share = 16384},
                     {.threads = 128, .share = 4096}},
          .run = run,
          .result = [x] { return x->shown(); },
          .outputs = [x] { return std::vector{x->weight}; },
          .reset = [x] { x->reset(); }};
}

// As ChecksumTensor of kernels/checksum.cuh.
struct ChecksumRow {
  const void* data;
  int64_t bytes, first_chunk, element_bytes;
};

struct Checksums {
  explicit Checksums(const SweepOptions& options)
      : device(options.device),
        sums(at::zeros({kTensors}, at::TensorOptions(at::kLong).device(device))) {
    const int64_t elements = options.sizes.checksum_bytes / 2 / kTensors;
    for (int64_t i = 0; i < kTensors; ++i)
      tensors.push_back(at::randn({elements}, at::TensorOptions(device)).to(at::kBFloat16));
  }
  // The tensors in chunks of that size, and how many of these there are.
  std::pair<at::Tensor, int64_t> table_of(int64_t size) {
    std::pair<at::Tensor, int64_t>& found = tables[size];
    if (found.first.defined()) return found;
    std::vector<ChecksumRow> rows;
    for (const at::Tensor& tensor : tensors) {
      const auto bytes = static_cast<int64_t>(tensor.nbytes());
      rows.push_back({.data = read_address(tensor),
                      .bytes = bytes,
                      .first_chunk = found.second,
                      .element_bytes = 2});
      found.second += ceil_div(bytes, size);
    }
    found.first = table_there(std::move(rows), device);
    return found;
  }

  static constexpr int64_t kTensors = 4;
  at::Device device;
  at::Tensor sums;
  std::vector<at::Tensor> tensors;
  std::map<int64_t, std::pair<at::Tensor, int64_t>> tables;
};

SweptKernel checksum(const SweepOptions& options) {
  const auto x = std::make_shared<Checksums>(options);
  const auto run = [x](const LaunchShape& shape, int64_t) {
    const auto [table, chunks] = x->table_of(shape.share);
    launch_kernel(*device_kernels(x->device), x->device,
                  {.name = "retort_checksum", .grid_x = chunks, .block = shape.threads},
                  read_address(table), write_address(x->sums),
                  static_cast<int32_t>(Checksums::kTensors), shape.share);
  };
  return {.row = ShapedKernel::kChecksum,
          .size = std::to_string(options.sizes.checksum_bytes) + " bytes",
          .bytes = static_cast<double>(options.sizes.checksum_bytes),
          .others = {{.threads = 256, .share = 256 << 10},
                     {.threads = 1024, .share = 256 << 10},
                     {.threads = 512, .share = 128 << 10},
                     {.threads = 512, .share = 512 << 10},
                     {.threads = 512, .share = 1 << 20}},
          .run = run,
          .result = [x] { return x->sums.clone(); },
          .outputs = [] { return std::vector<at::Tensor>{}; },  // it adds to them
          .reset = [x] { x->sums.zero_(); }};
}

}  // namespace

std::vector<SweptKernel> weight_kernels(const SweepOptions& options) {
  return {adamw(options), checksum(options)};
}

}  // namespace retort::kernels::sweep

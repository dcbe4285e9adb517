#include "tests/kernels/sweep/sweep.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isclose.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <sstream>

#include "base/error.h"
#include "kernels/device_kernels.h"

namespace retort::kernels::sweep {
namespace {

using Clock = std::chrono::steady_clock;

// Waits until the device has done all that was queued.
class Waiting {
 public:
  explicit Waiting(const at::Device& device) : one_(at::zeros({1}, device)) {}
  void operator()() const { one_.cpu(); }

 private:
  at::Tensor one_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.at(values.size() / 2);
}

// Seconds a launch, of `count` that are queued at once.
double timed(const Waiting& wait, int64_t count, const std::function<void(int64_t)>& launch) {
  wait();
  const auto start = Clock::now();
  for (int64_t i = 0; i < count; ++i)
    launch(i);
  wait();
  return std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(count);
}

double copy_rate(const SweepOptions& options, const Waiting& wait) {
  const at::TensorOptions bytes = at::TensorOptions(at::kByte).device(options.device);
  const at::Tensor from = at::zeros({options.sizes.copy_bytes}, bytes);
  at::Tensor to = at::empty({options.sizes.copy_bytes}, bytes);
  std::vector<double> seconds;
  for (int64_t round = 0; round <= options.rounds; ++round)
    seconds.push_back(timed(wait, options.launches, [&](int64_t) { to.copy_(from); }));
  seconds.erase(seconds.begin());
  return 2 * static_cast<double>(options.sizes.copy_bytes) / median(seconds);
}

// In a floating-point dtype not a number, in integers -1.
void poison(const SweptKernel& kernel) {
  for (const at::Tensor& output : kernel.outputs())
    if (output.defined()) output.view(at::kByte).fill_(0xff);
}

// Whether nothing is left of what poison() wrote; no result is -1.
bool is_written(const at::Tensor& result) {
  if (result.is_floating_point()) return result.isfinite().all().item<bool>();
  return !result.eq(-1).any().item<bool>();
}

struct Measured {
  double seconds = 0;
  at::Tensor result;  // in host memory, float64
  bool written = false;
};

Measured measure(const SweptKernel& kernel, const LaunchShape& shape, const SweepOptions& options,
                 const Waiting& wait) {
  // What another shape has left is gone, or rows that this one does not write would be right.
  poison(kernel);
  const int64_t count = kernel.reset ? options.overwriting : options.launches;
  std::vector<double> seconds;
  // The first round loads the kernel, and fills what caches there are.
  for (int64_t round = 0; round <= options.rounds; ++round) {
    if (kernel.reset) kernel.reset();
    seconds.push_back(timed(wait, count, [&](int64_t i) { kernel.run(shape, i); }));
  }
  seconds.erase(seconds.begin());
  const at::Tensor result = kernel.result().cpu();
  return {.seconds = median(seconds),
          .result = result.to(at::kDouble),
          .written = is_written(result)};
}

// Two roundings of bfloat16 apart at the most; all is a number.
bool is_same(const Measured& got, const Measured& wanted) {
  if (!got.written || !wanted.written) return false;
  const double largest = wanted.result.numel() == 0 ? 0 : wanted.result.abs().max().item<double>();
  return at::isclose(got.result, wanted.result, /*rtol=*/1.0 / 64, /*atol=*/1e-5 * largest)
      .all()
      .item<bool>();
}

std::string line_of(const SweptKernel& kernel, const LaunchShape& shape, bool in_use,
                    const Measured& measured, double copy, bool right) {
  const double rate = kernel.bytes / measured.seconds;
  const auto truth = [](bool value) { return value ? "true" : "false"; };
  std::ostringstream line;
  line.precision(4);
  line << "{\"kernel\": \"" << name_of(kernel.row) << "\", \"size\": \"" << kernel.size
       << "\", \"threads\": " << shape.threads << ", \"share\": " << shape.share
       << ", \"least\": " << shape.least << ", \"blocks\": " << shape.blocks
       << ", \"in_use\": " << truth(in_use) << ", \"us\": " << measured.seconds * 1e6
       << ", \"gb_s\": " << rate / 1e9 << ", \"of_copy\": " << rate / copy
       << ", \"right\": " << truth(right) << "}";
  return line.str();
}

bool is_wanted(const SweptKernel& kernel, const SweepOptions& options) {
  return options.only.empty() ||
         std::ranges::find(options.only, name_of(kernel.row)) != options.only.end();
}

// A name that no kernel has would be a sweep of nothing.
void check_names(const std::vector<std::string>& only) {
  std::string all;
  for (size_t i = 0; i < kNumShapedKernels; ++i)
    all += (all.empty() ? "" : ", ") + std::string(name_of(static_cast<ShapedKernel>(i)));
  const std::string listed = ", " + all + ", ";
  for (const std::string& name : only)
    if (name.empty() || listed.find(", " + name + ", ") == std::string::npos)
      throw Error(ErrorCode::kInvalidArgument,
                  "no kernel has the name '" + name + "'; there are " + all);
}

}  // namespace

SweepSizes SweepSizes::tiny() {
  return {.rows = 2,
          .fewer_rows = 2,
          .vocab = 1300,
          .few_draws = 2,
          .many_draws = 2,
          .tokens = 5,
          .hidden = 64,
          .inner = 200,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 64,
          .partial_rows = 40,
          .sequences = 2,
          .keys = 70,
          .parameters = 9000,
          .checksum_bytes = 300'000,
          .copy_bytes = 4096};
}

void sweep_kernels(const SweepOptions& options,
                   const std::function<void(const std::string& line)>& tell) {
  check_names(options.only);
  RETORT_CHECK(device_kernels(options.device) != nullptr)
      << "no kernels on " << options.device.str();
  const Waiting wait(options.device);
  const double copy = copy_rate(options, wait);
  std::ostringstream first;
  first.precision(4);
  first << "{\"device\": \"" << options.device.str()
        << "\", \"capability\": " << device_kernels(options.device)->capability(options.device)
        << ", \"copy_gb_s\": " << copy / 1e9 << "}";
  tell(first.str());

  for (auto* group : {&logits_kernels, &layer_kernels, &weight_kernels, &decode_kernels})
    for (const SweptKernel& kernel : group(options)) {
      if (!is_wanted(kernel, options)) continue;
      const LaunchShape& in_use = launch_shape(kernel.row, options.device);
      const Measured base = measure(kernel, in_use, options, wait);
      tell(line_of(kernel, in_use, true, base, copy, is_same(base, base)));
      if (!options.all_shapes) continue;

      for (const LaunchShape& shape : kernel.others) {
        if (shape == in_use) continue;
        const Measured other = measure(kernel, shape, options, wait);
        tell(line_of(kernel, shape, false, other, copy, is_same(other, base)));
      }
    }
}

}  // namespace retort::kernels::sweep

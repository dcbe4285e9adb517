#include "tests/kernels/sweep/sweep.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isclose.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cmath>
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

struct Measured {
  double seconds = 0;
  at::Tensor result;  // in host memory, float64
};

Measured measure(const SweptKernel& kernel, const LaunchShape& shape, const SweepOptions& options,
                 const Waiting& wait) {
  const int64_t count = kernel.reset ? options.overwriting : options.launches;
  std::vector<double> seconds;
  // The first round loads the kernel, and fills what caches there are.
  for (int64_t round = 0; round <= options.rounds; ++round) {
    if (kernel.reset) kernel.reset();
    seconds.push_back(timed(wait, count, [&](int64_t i) { kernel.run(shape, i); }));
  }
  seconds.erase(seconds.begin());
  return {.seconds = median(seconds), .result = kernel.result().cpu().to(at::kDouble)};
}

// Two roundings of bfloat16 apart at the most; all is a number.
bool is_same(const at::Tensor& got, const at::Tensor& wanted) {
  const double largest = wanted.numel() == 0 ? 0 : wanted.abs().max().item<double>();
  return std::isfinite(largest) &&
         at::isclose(got, wanted, /*rtol=*/1.0 / 64, /*atol=*/1e-5 * largest).all().item<bool>();
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
      tell(line_of(kernel, in_use, true, base, copy, is_same(base.result, base.result)));
      if (!options.all_shapes) continue;

      for (const LaunchShape& shape : kernel.others) {
        if (shape == in_use) continue;
        const Measured other = measure(kernel, shape, options, wait);
        tell(line_of(kernel, shape, false, other, copy, is_same(other.result, base.result)));
      }
    }
}

}  // namespace retort::kernels::sweep

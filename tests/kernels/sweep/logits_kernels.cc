// The kernels over rows of logits: cross-entropy, divergences, log-probabilities, the k largest,
// and draws.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "base/sizes.h"
#include "kernels/device_kernels.h"
#include "tests/kernels/sweep/sweep.h"

namespace retort::kernels::sweep {
namespace {

constexpr int64_t kShownRows = 4;  // at each end of a result

// What all of them read, and where gradients overwrite it.
struct Logits {
  explicit Logits(const SweepOptions& options)
      : device(options.device),
        sizes(options.sizes),
        source(at::randn({sizes.rows, sizes.vocab}, floats()) * 2),
        teacher(at::randn({sizes.fewer_rows, sizes.vocab}, floats()) * 2),
        targets(at::randint(sizes.vocab, {sizes.rows}, floats().dtype(at::kLong))),
        max(at::empty({sizes.rows}, floats())),
        tail_max(at::empty({sizes.rows}, floats())),
        log_prob(at::empty({sizes.rows}, floats())),
        entropy(at::zeros({sizes.rows}, floats())),
        ones(at::ones({sizes.rows}, floats())),
        sum(at::empty({sizes.rows}, floats().dtype(at::kDouble))),
        numbers(at::zeros({7, sizes.rows}, floats().dtype(at::kDouble))),
        first(at::empty({sizes.rows}, floats().dtype(at::kLong))) {
    for (int64_t i = 0; i < options.overwriting; ++i)
      copies.push_back(at::empty_like(source));
  }

  at::TensorOptions floats() const { return at::TensorOptions(at::kFloat).device(device); }
  DeviceKernels& kernels() const { return *device_kernels(device); }
  void reset() {
    for (at::Tensor& copy : copies)
      copy.copy_(source);
  }
  at::Tensor& copy(int64_t i) { return copies.at(to_size(i)); }
  // The first and the last of `rows` of a gradient in bfloat16, which lies over the front of each.
  at::Tensor shown_gradient(int64_t rows) const {
    const int64_t some = std::min(kShownRows, rows);
    const at::Tensor all = copies.front().view(at::kBFloat16).narrow(1, 0, sizes.vocab);
    return at::cat({all.narrow(0, 0, some), all.narrow(0, rows - some, some)});
  }
  std::string size(int64_t rows, const std::string& more = "") const {
    return std::to_string(rows) + " x " + std::to_string(sizes.vocab) + more;
  }
  double bytes(double each, int64_t rows) const {
    return each * static_cast<double>(rows) * static_cast<double>(sizes.vocab);
  }

  const at::Device device;
  const SweepSizes sizes;
  const at::Tensor source, teacher, targets;
  at::Tensor max, tail_max, log_prob, entropy, ones, sum, numbers, first;
  std::vector<at::Tensor> copies;
};
using LogitsPointer = std::shared_ptr<Logits>;

std::vector<LaunchShape> threads(std::initializer_list<int64_t> counts) {
  std::vector<LaunchShape> shapes;
  for (const int64_t count : counts)
    shapes.push_back({.threads = count});
  return shapes;
}

// Of cross_entropy.cuh: the pieces that a block keeps, as device_rows.cc of the losses counts them.
SweptKernel ce_rows(const LogitsPointer& x) {
  const auto run = [x](const LaunchShape& shape, int64_t copy) {
    const int64_t piece = 4 * 16 * shape.threads;
    const int64_t pieces = ceil_div(4 * x->sizes.vocab, piece);
    const int64_t room = x->kernels().max_shared_bytes(x->device) / piece;
    const int64_t kept = std::clamp<int64_t>(pieces - 4, 0, std::min(shape.share, room));
    at::Tensor log_prob = x->numbers.select(0, 0), entropy = x->numbers.select(0, 1),
               correct = x->numbers.select(0, 2);
    const void* all_one = nullptr;
    launch_kernel_for(
        at::kBFloat16, "retort_ce_rows", x->device,
        {.grid_x = x->sizes.rows, .block = shape.threads, .shared_bytes = kept * piece},
        write_address(x->copy(copy)), x->sizes.vocab, static_cast<int32_t>(kept),
        read_address(x->targets), all_one, write_address(log_prob), write_address(entropy),
        write_address(correct));
  };
  return {.row = ShapedKernel::kCeRows,
          .size = x->size(x->sizes.rows, ", bf16"),
          .bytes = x->bytes(10, x->sizes.rows),
          .others = {{.threads = 512, .share = 6},
                     {.threads = 512, .share = 4},
                     {.threads = 512, .share = 0},
                     {.threads = 384, .share = 9},
                     {.threads = 256, .share = 13},
                     {.threads = 256, .share = 7}},
          .run = run,
          .result = [x] { return x->shown_gradient(x->sizes.rows); },
          .outputs = [x] { return std::vector{x->numbers}; },
          .reset = [x] { x->reset(); }};
}

void run_statistics(const Logits& x, const LaunchShape& shape, Logits& to) {
  const int64_t first_column = 0;
  const float inv_temperature = 1;
  at::Tensor moment = to.numbers.select(0, 3), target_logit = to.numbers.select(0, 4);
  launch_kernel(
      x.kernels(), x.device,
      {.name = "retort_ce_rows_statistics", .grid_x = x.sizes.rows, .block = shape.threads},
      read_address(x.source), x.sizes.vocab, read_address(x.targets), first_column, inv_temperature,
      write_address(to.max), write_address(to.sum), write_address(moment),
      write_address(target_logit), write_address(to.first));
}

SweptKernel ce_statistics(const LogitsPointer& x) {
  return {.row = ShapedKernel::kCeStatistics,
          .size = x->size(x->sizes.rows),
          .bytes = x->bytes(4, x->sizes.rows),
          .others = threads({256, 384, 768, 1024}),
          .run = [x](const LaunchShape& shape, int64_t) { run_statistics(*x, shape, *x); },
          .result = [x] { return x->sum.clone(); },
          .outputs = [x] { return std::vector{x->max, x->sum, x->numbers, x->first}; }};
}

SweptKernel ce_gradient(const LogitsPointer& x) {
  const auto run = [x](const LaunchShape& shape, int64_t copy) {
    const int64_t first_column = 0;
    launch_kernel_for(at::kBFloat16, "retort_ce_rows_gradient", x->device,
                      {.grid_x = x->sizes.rows, .block = shape.threads},
                      write_address(x->copy(copy)), x->sizes.vocab, read_address(x->targets),
                      first_column, read_address(x->max), read_address(x->sum),
                      read_address(x->ones));
  };
  return {.row = ShapedKernel::kCeGradient,
          .size = x->size(x->sizes.rows, ", bf16"),
          .bytes = x->bytes(6, x->sizes.rows),
          .others = threads({256, 384, 768, 1024}),
          .run = run,
          .result = [x] { return x->shown_gradient(x->sizes.rows); },
          .outputs = [] { return std::vector<at::Tensor>{}; },
          .reset = [x] { x->reset(); }};
}

// Forward KL, with the cross-entropy beside.
SweptKernel divergence(const LogitsPointer& x) {
  const auto run = [x](const LaunchShape& shape, int64_t copy) {
    const int32_t type = 0, gradient = 1;
    const float mix = 0.5F, one = 1, half = 0.5F;
    launch_kernel_for(at::kBFloat16, "retort_divergence_rows", x->device,
                      {.grid_x = x->sizes.fewer_rows, .block = shape.threads},
                      write_address(x->copy(copy)), x->sizes.vocab, read_address(x->teacher),
                      x->sizes.vocab, x->sizes.vocab, read_address(x->targets), type, mix, one, one,
                      half, half, gradient, x->sizes.fewer_rows, write_address(x->numbers));
  };
  return {.row = ShapedKernel::kDivergence,
          .size = x->size(x->sizes.fewer_rows, ", forward KL, bf16"),
          .bytes = x->bytes(18, x->sizes.fewer_rows),
          .others = threads({128, 192, 384, 512}),
          .run = run,
          .result = [x] { return x->shown_gradient(x->sizes.fewer_rows); },
          .outputs = [x] { return std::vector{x->numbers}; },
          .reset = [x] { x->reset(); }};
}

SweptKernel log_prob(const LogitsPointer& x) {
  const auto run = [x](const LaunchShape& shape, int64_t) {
    const float inv_temperature = 1;
    launch_kernel(x->kernels(), x->device,
                  {.name = "retort_log_prob_rows", .grid_x = x->sizes.rows, .block = shape.threads},
                  read_address(x->source), x->sizes.vocab, read_address(x->targets),
                  inv_temperature, write_address(x->log_prob), write_address(x->entropy),
                  write_address(x->max), write_address(x->sum));
  };
  return {.row = ShapedKernel::kLogProb,
          .size = x->size(x->sizes.rows),
          .bytes = x->bytes(4, x->sizes.rows),
          .others = threads({256, 384, 768, 1024}),
          .run = run,
          .result = [x] { return x->log_prob.clone(); },
          .outputs = [x] { return std::vector{x->log_prob, x->entropy, x->max, x->sum}; }};
}

SweptKernel log_prob_gradient(const LogitsPointer& x) {
  const auto run = [x](const LaunchShape& shape, int64_t copy) {
    const int64_t first_column = 0;
    const float inv_temperature = 1;
    const void* of_entropy = nullptr;
    launch_kernel_for(at::kBFloat16, "retort_log_prob_rows_gradient", x->device,
                      {.grid_x = x->sizes.rows, .block = shape.threads},
                      write_address(x->copy(copy)), x->sizes.vocab, read_address(x->targets),
                      first_column, inv_temperature, read_address(x->max), read_address(x->sum),
                      read_address(x->entropy), read_address(x->ones), of_entropy);
  };
  return {.row = ShapedKernel::kLogProbGradient,
          .size = x->size(x->sizes.rows, ", bf16"),
          .bytes = x->bytes(6, x->sizes.rows),
          .others = threads({256, 384, 768, 1024}),
          .run = run,
          .result = [x] { return x->shown_gradient(x->sizes.rows); },
          .outputs = [] { return std::vector<at::Tensor>{}; },
          .reset = [x] { x->reset(); }};
}

SweptKernel top_k(const LogitsPointer& x) {
  constexpr int32_t kLargest = 64;
  const int64_t rows = x->sizes.fewer_rows;
  const auto values = std::make_shared<at::Tensor>(at::empty({rows, kLargest}, x->floats()));
  const auto ids =
      std::make_shared<at::Tensor>(at::empty({rows, kLargest}, x->floats().dtype(at::kLong)));
  const auto run = [=](const LaunchShape& shape, int64_t) {
    const float inv_temperature = 1;
    at::Tensor tail_sum = x->numbers.select(0, 0);
    launch_kernel(x->kernels(), x->device,
                  {.name = "retort_top_k_rows_f32", .grid_x = rows, .block = shape.threads},
                  read_address(x->source), x->sizes.vocab, x->sizes.vocab, kLargest,
                  inv_temperature, write_address(*values), write_address(*ids),
                  write_address(x->max), write_address(x->sum), write_address(x->tail_max),
                  write_address(tail_sum));
  };
  return {.row = ShapedKernel::kTopK,
          .size = x->size(rows, ", k " + std::to_string(kLargest)),
          .bytes = x->bytes(8, rows),
          .others = threads({256, 384, 768, 1024}),
          .run = run,
          .result = [values] { return values->clone(); },
          .outputs = [values, ids] { return std::vector{*values, *ids}; }};
}

// As SampleRow of kernels/sample.cuh.
struct Draw {
  uint64_t key;
  double temperature;
  float inverse_temperature, min_p;
  int32_t row, num_ids;
};

SweptKernel sample(const LogitsPointer& x, ShapedKernel row, int64_t count) {
  static_assert(sizeof(Draw) == 32, "as kernels/sample.cuh reads them");
  std::vector<Draw> draws;
  for (int64_t i = 0; i < count; ++i)
    draws.push_back({.key = 0x9e3779b97f4a7c15ULL * static_cast<uint64_t>(i + 1),
                     .temperature = 1,
                     .inverse_temperature = 1,
                     .min_p = 0,
                     .row = static_cast<int32_t>(i),
                     .num_ids = 0});
  const auto bytes = static_cast<int64_t>(sizeof(Draw)) * count;
  const auto there = std::make_shared<at::Tensor>(
      at::from_blob(draws.data(), {bytes}, at::kByte).clone().to(x->device));
  const auto tokens =
      std::make_shared<at::Tensor>(at::empty({count, 4}, x->floats().dtype(at::kInt)));

  const auto run = [=](const LaunchShape& shape, int64_t) {
    const int64_t wanted = ceil_div(x->sizes.vocab, 128) * 32;
    launch_kernel(x->kernels(), x->device,
                  {.name = "retort_sample_rows_f32",
                   .grid_x = count,
                   .block = std::clamp<int64_t>(wanted, 32, shape.threads)},
                  read_address(x->source), read_address(*there), write_address(*tokens),
                  static_cast<int32_t>(x->sizes.vocab));
  };
  return {.row = row,
          .size = x->size(count),
          .bytes = x->bytes(4, count),
          .others = threads({256, 384, 512, 768, 1024}),
          .run = run,
          .result = [tokens] { return tokens->select(1, 0).clone(); },
          .outputs = [tokens] { return std::vector{*tokens}; }};
}

}  // namespace

std::vector<SweptKernel> logits_kernels(const SweepOptions& options) {
  const auto x = std::make_shared<Logits>(options);
  // The second halves read what the first leave.
  run_statistics(*x, launch_shape(ShapedKernel::kCeStatistics, options.device), *x);
  return {ce_rows(x),
          ce_statistics(x),
          ce_gradient(x),
          divergence(x),
          log_prob(x),
          log_prob_gradient(x),
          top_k(x),
          sample(x, ShapedKernel::kSampleFew, options.sizes.few_draws),
          sample(x, ShapedKernel::kSampleMany, options.sizes.many_draws)};
}

}  // namespace retort::kernels::sweep

// Times of the kernels on a device over launch shapes, beside a copy: what kernels_bench prints,
// and what the emulator runs to its end with tiny sizes.
//
//   sweep_kernels({.device = world.device()}, [](const std::string& line) { std::puts(...); });
//
// Lines: JSON objects. The first has the copy's rate, each other one a kernel in one shape:
//   {"kernel": "ce_rows", "size": "2048 x 151936, bf16", "threads": 512, "share": 7, "least": 0,
//    "blocks": 0, "in_use": true, "us": 870.1, "gb_s": 3578, "of_copy": 1.189, "right": true}
//   "in_use" is the table's shape (kernels/launch_shapes.h) for this device, "right" whether the
//   results are those of that shape, each of them written; a shape that is not right must not be
//   used.
// Memory: 12 GiB of the device at the sizes by default, which its caches do not hold.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/launch_shapes.h"

namespace retort::kernels::sweep {

struct SweepSizes {
  int64_t rows = 2048, fewer_rows = 1024, vocab = 151936;  // of logits
  int64_t few_draws = 64, many_draws = 256;                // at most `rows`
  int64_t tokens = 8192, hidden = 2048, inner = 3072;
  int64_t heads = 16, kv_heads = 8, head_dim = 128;
  int64_t partial_rows = 528;  // that a sum over columns reads
  int64_t sequences = 64, keys = 512;
  int64_t parameters = 268'435'456;
  int64_t checksum_bytes = 1'190'000'000;
  int64_t copy_bytes = int64_t{1} << 31;

  // For the emulator, which takes milliseconds for a block of threads.
  static SweepSizes tiny();
};

struct SweepOptions {
  at::Device device = at::kCPU;  // that has kernels
  SweepSizes sizes = {};
  bool all_shapes = true;              // else those in use alone
  std::vector<std::string> only = {};  // names of rows of the table; none: all
  int64_t rounds = 5;                  // of which the median is told, behind one that is not timed
  int64_t launches = 20;               // of a round
  // Of a round, where a launch overwrites what it reads: each has a copy of its own.
  int64_t overwriting = 4;
};

// One kernel with its arguments in the device's memory.
struct SweptKernel {
  ShapedKernel row;
  std::string size;
  double bytes = 0;                 // that a launch moves, by the formula at the kernel's head
  std::vector<LaunchShape> others;  // 3 to 7 besides that in use
  // Launches it, where it overwrites what it reads in the copy of that number.
  std::function<void(const LaunchShape& shape, int64_t copy)> run;
  std::function<at::Tensor()> result;  // some of what the first copy's launch wrote
  // All that a launch writes and does not read, contiguous: bytes 0xff before each shape's first.
  std::function<std::vector<at::Tensor>()> outputs;
  std::function<void()> reset = {};    // all copies; empty: nothing is overwritten
};

// The kernels of one group have memory together, which is free when they are gone.
std::vector<SweptKernel> logits_kernels(const SweepOptions& options);
std::vector<SweptKernel> layer_kernels(const SweepOptions& options);
std::vector<SweptKernel> weight_kernels(const SweepOptions& options);
std::vector<SweptKernel> decode_kernels(const SweepOptions& options);

void sweep_kernels(const SweepOptions& options,
                   const std::function<void(const std::string& line)>& tell);

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace retort::kernels::sweep

#include "recipes/run/loop/device_scalars.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

#include <utility>

namespace retort::recipes {

void DeviceScalars::add(const at::Tensor& numbers, Take take) {
  at::Tensor flat = numbers.detach().reshape({-1}).to(at::kDouble).contiguous();
  if (flat.is_cpu()) return take(flat.const_data_ptr<double>());
  waiting_.push_back({std::move(flat), std::move(take)});
}

void DeviceScalars::read() {
  if (waiting_.empty()) return;
  const std::vector<Waiting> waiting = std::exchange(waiting_, {});
  std::vector<at::Tensor> parts;
  for (const Waiting& one : waiting)
    parts.push_back(one.numbers);

  // All numbers come in one copy, so that the host waits for the device once, not for each of them.
  const at::Tensor host = at::cat(parts).cpu();
  const double* next = host.const_data_ptr<double>();
  for (const Waiting& one : waiting) {
    one.take(next);
    next += one.numbers.numel();
  }
}

}  // namespace retort::recipes

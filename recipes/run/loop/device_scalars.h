// What a step's losses tell of themselves, read from a device once.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace retort::recipes {

// Numbers that somebody takes as soon as the host has them: at once if they lie there, else when
// read() copies what all calls have left on the device, in one copy and their order. So a step
// waits for its device once, however many micro-batches it has.
//
// Memory: 8 bytes a number, on the device, until read(). Threads: compute.
class DeviceScalars {
 public:
  using Take = std::function<void(const double* numbers)>;
  // `numbers`: of any shape and float dtype; taken as float64, in their order, without a gradient.
  // What `take` refers to must live until read(); what it throws comes out of add() or read().
  void add(const at::Tensor& numbers, Take take);
  // Waits for the device. Nothing is left, also if a taker throws.
  void read();

 private:
  struct Waiting {
    at::Tensor numbers;
    Take take;
  };
  std::vector<Waiting> waiting_;
};

}  // namespace retort::recipes

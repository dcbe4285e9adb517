// The float32 sum that a parameter's gradient goes into, for a backward pass that can add its
// product to it: then no tensor of that gradient is made, it is not rounded to the parameter's
// dtype, and nothing is copied.
#pragma once

#include <ATen/core/Tensor.h>

namespace retort::parallel {

// GradBuckets gives each of its parameters one; it is found by the parameter itself. Use, in the
// backward pass of a function that takes a parameter:
//   if (GradientSink* sink = gradient_sink_of(parameter)) {
//     const GradientSink::Sum sum = sink->take();
//     at::addmm_out(sum.values, sum.values, a, b, at::kFloat, sum.is_empty ? 0 : 1);
//   }
// and the function gives autograd no gradient of the parameter. Others of its uses may: autograd's
// part is added when all of them are done, which is also when the parameter counts as ready.
class GradientSink {
 public:
  struct Sum {
    at::Tensor values;  // float32, of the parameter's shape, on its device
    // It has nothing of this step: what it holds must be overwritten.
    bool is_empty = false;
  };
  virtual ~GradientSink() = default;

  // Who takes the sum adds to it before anything else is queued. Errors: GradBuckets', of a
  // gradient that nobody awaits.
  virtual Sum take() = 0;
};

// That of a parameter; null if nobody adds up its gradients (of any other tensor, too).
GradientSink* gradient_sink_of(const at::Tensor& parameter);
// Gives a leaf that stands in for the parameter in a graph of its own the same sink, if there is
// one. For as long as the parameter has it.
void share_gradient_sink(const at::Tensor& parameter, const at::Tensor& leaf);

}  // namespace retort::parallel

#include "parallel/gradient_sink.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>

namespace retort::parallel {
namespace {

// LibTorch runs it for gradients that are added up in the leaf, which those of a graph of its own
// are not.
struct SharedSink final : torch::autograd::PostAccumulateGradHook, GradientSink {
  explicit SharedSink(GradientSink& parameter_in) : parameter(parameter_in) {}
  void operator()(const at::Tensor&) override {}
  Sum take() override { return parameter.take(); }
  GradientSink& parameter;
};

}  // namespace

GradientSink* gradient_sink_of(const at::Tensor& parameter) {
  if (!parameter.defined() || !parameter.requires_grad() || !parameter.is_leaf()) return nullptr;
  return dynamic_cast<GradientSink*>(torch::autograd::impl::post_acc_grad_hooks(parameter).get());
}

void share_gradient_sink(const at::Tensor& parameter, const at::Tensor& leaf) {
  GradientSink* sink = gradient_sink_of(parameter);
  if (sink == nullptr) return;
  torch::autograd::impl::set_post_acc_grad_hooks(leaf, std::make_unique<SharedSink>(*sink));
}

}  // namespace retort::parallel

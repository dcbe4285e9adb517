#include "models/ops/functions.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"
#include "models/ops/device_functions.h"
#include "models/ops/kernels.h"
#include "parallel/gemm.h"
#include "parallel/gradient_sink.h"

namespace retort::models {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

const float* in(const Tensor& t) { return t.const_data_ptr<float>(); }
float* out(Tensor& t) { return t.mutable_data_ptr<float>(); }

class ColumnLinear : public Function<ColumnLinear> {
 public:
  // Lists must be at::TensorList: Function tracks no gradient through any other container.
  static variable_list forward(AutogradContext* ctx, const Tensor& x, at::TensorList weights,
                               at::TensorList biases, const TensorParallel& tp) {
    variable_list saved{x};
    variable_list outputs;
    const Tensor input = tp.active() && tp.sequence ? gather_rows(x, tp) : x;
    for (size_t i = 0; i < weights.size(); ++i) {
      saved.push_back(weights[i]);
      outputs.push_back(
          parallel::linear_forward(input, weights[i], biases.empty() ? Tensor() : biases[i]));
    }
    ctx->save_for_backward(saved);
    ctx->saved_data["biases"] = static_cast<int64_t>(biases.size());
    if (tp.active()) ctx->saved_data["tp"] = to_ivalue(tp);
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    // The input and the weights were saved in the order of the arguments. The gathered input was
    // not kept: it is gathered again.
    const variable_list saved = ctx->get_saved_variables();
    const size_t count = saved.size() - 1;
    const auto biases = static_cast<size_t>(ctx->saved_data["biases"].toInt());
    const TensorParallel tp = saved_tensor_parallel(ctx);
    const Tensor input = tp.active() && tp.sequence ? gather_rows(saved[0], tp) : saved[0];

    // The result has a place for each argument of forward: x, weights, biases, tp. dx is the sum
    // over the layers.
    variable_list result(1 + count + biases + 1);
    for (size_t i = 0; i < count; ++i) {
      if (!grads[i].defined()) continue;
      const Tensor grad = grads[i].contiguous();
      if (ctx->needs_input_grad(0)) parallel::add_grad_input(result[0], grad, saved[1 + i]);
      // Where the sum of the weight's gradients has taken the product, autograd gets none.
      if (ctx->needs_input_grad(1 + i) && !parallel::add_grad_weight(saved[1 + i], grad, input))
        result[1 + i] = parallel::linear_grad_weight(grad, input);
      if (i < biases && ctx->needs_input_grad(1 + count + i)) result[1 + count + i] = grad.sum(0);
    }

    // The other ranks' rows of the weights contribute to dx too, so their parts are summed.
    if (tp.active() && ctx->needs_input_grad(0)) result[0] = sum_input_gradient(result[0], tp);
    return result;
  }

 private:
  static TensorParallel saved_tensor_parallel(AutogradContext* ctx) {
    const auto found = ctx->saved_data.find("tp");
    return found == ctx->saved_data.end() ? TensorParallel{} : from_ivalue(found->second);
  }
};

class RmsNorm : public Function<RmsNorm> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, double eps) {
    const int64_t width = x.size(-1);
    const int64_t rows = width == 0 ? 0 : x.numel() / width;
    Tensor y = at::empty(x.sizes(), x.options());
    Tensor rstd = at::empty({rows}, x.options());
    rms_norm_forward(in(x), in(weight), out(y), out(rstd), rows, width, static_cast<float>(eps));
    ctx->save_for_backward({x, weight, rstd});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor& x = saved[0];
    const Tensor dy = grads[0].contiguous();
    Tensor dx = at::empty(x.sizes(), x.options());
    Tensor dw = at::empty(saved[1].sizes(), x.options());
    rms_norm_backward(in(dy), in(x), in(saved[1]), in(saved[2]), nullptr, out(dx), out(dw),
                      saved[2].size(0), x.size(-1));
    return {dx, dw, Tensor()};
  }
};

class AddRmsNorm : public Function<AddRmsNorm> {
 public:
  static variable_list forward(AutogradContext* ctx, const Tensor& a, const Tensor& b,
                               const Tensor& weight, double eps) {
    const int64_t rows = a.size(0);
    const int64_t width = a.size(1);
    Tensor sum = at::empty(a.sizes(), a.options());
    Tensor y = at::empty(a.sizes(), a.options());
    Tensor rstd = at::empty({rows}, a.options());
    add_rms_norm_forward(in(a), in(b), in(weight), out(sum), out(y), out(rstd), rows, width,
                         static_cast<float>(eps));
    ctx->save_for_backward({sum, weight, rstd});
    ctx->set_materialize_grads(false);
    return {sum, y};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor& sum = saved[0];
    // If nobody used the norm, the gradient of the sum is that of both its terms.
    if (!grads[1].defined()) return {grads[0], grads[0], Tensor(), Tensor()};
    const Tensor dsum = grads[0].defined() ? grads[0].contiguous() : Tensor();
    const Tensor dy = grads[1].contiguous();
    Tensor dx = at::empty(sum.sizes(), sum.options());
    Tensor dw = at::empty(saved[1].sizes(), sum.options());
    rms_norm_backward(in(dy), in(sum), in(saved[1]), in(saved[2]),
                      dsum.defined() ? in(dsum) : nullptr, out(dx), out(dw), sum.size(0),
                      sum.size(1));
    return {dx, dx, dw, Tensor()};
  }
};

// Runs the kernels of one activation.
template <auto Forward, auto Backward>
class Gated : public Function<Gated<Forward, Backward>> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& gate, const Tensor& up) {
    Tensor y = at::empty(gate.sizes(), gate.options());
    Forward(in(gate), in(up), out(y), gate.numel());
    ctx->save_for_backward({gate, up});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor dy = grads[0].contiguous();
    Tensor dgate = at::empty(dy.sizes(), dy.options());
    Tensor dup = at::empty(dy.sizes(), dy.options());
    Backward(in(dy), in(saved[0]), in(saved[1]), out(dgate), out(dup), dy.numel());
    return {dgate, dup};
  }
};
using SwiGlu = Gated<swiglu_forward, swiglu_backward>;
using GeGlu = Gated<geglu_forward, geglu_backward>;

// Uses one kernel of CUDA where there is one for the dtypes; it rounds the result once.
Tensor operator_rms_norm(const Tensor& x, const Tensor& weight, double eps, bool unit_offset) {
  if (x.is_cuda() && x.scalar_type() == weight.scalar_type() && !unit_offset)
    return std::get<0>(at::_fused_rms_norm(x, {x.size(-1)}, weight, eps));
  const Tensor wide = x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
  const Tensor variance = wide.mul(wide).mean(-1, true);
  const Tensor normed = wide * at::rsqrt(variance + eps);
  if (unit_offset) return (normed * (weight.to(wide.scalar_type()) + 1)).to(x.scalar_type());
  return weight * normed.to(x.scalar_type());
}

// Carries the body to backward in Function's saved_data, as a capsule.
struct BodyHolder : torch::CustomClassHolder {
  explicit BodyHolder(LayerBody b) : body(std::move(b)) {}
  LayerBody body;
};

class Checkpointed : public Function<Checkpointed> {
 public:
  static Tensor forward(AutogradContext* ctx, const LayerBody& body, const Tensor& x,
                        at::TensorList parameters) {
    variable_list saved{x};
    saved.insert(saved.end(), parameters.begin(), parameters.end());
    ctx->save_for_backward(saved);
    ctx->saved_data["body"] = c10::IValue::make_capsule(c10::make_intrusive<BodyHolder>(body));
    at::AutoGradMode no_grad(false);
    return body(x, parameters.vec());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const auto holder =
        c10::static_intrusive_pointer_cast<BodyHolder>(ctx->saved_data["body"].toCapsule());

    // The arguments become leaves, cut off from the graph outside, so that the gradient below ends
    // at them.
    variable_list inputs;
    variable_list wanted;
    std::vector<size_t> position;
    for (size_t i = 0; i < saved.size(); ++i) {
      Tensor leaf = saved[i].detach();
      if (ctx->needs_input_grad(i)) {
        leaf.set_requires_grad(true);
        parallel::share_gradient_sink(saved[i], leaf);
        wanted.push_back(leaf);
        position.push_back(i);
      }
      inputs.push_back(leaf);
    }

    // The body runs a second time, now with gradients.
    at::AutoGradMode with_grad(true);
    const Tensor y = holder->body(inputs[0], variable_list(inputs.begin() + 1, inputs.end()));
    const variable_list found =
        torch::autograd::grad({y}, wanted, {grads[0]}, /*retain_graph=*/std::nullopt,
                              /*create_graph=*/false, /*allow_unused=*/true);
    variable_list result(1 + saved.size());  // the first argument, the body, has none
    for (size_t i = 0; i < found.size(); ++i)
      result[1 + position[i]] = found[i];
    return result;
  }
};

}  // namespace

bool fused_path(const Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kFloat && x.is_contiguous();
}

std::vector<Tensor> column_linear(const Tensor& x, const std::vector<Tensor>& weights,
                                  const std::vector<Tensor>& biases, const TensorParallel& tp) {
  RETORT_CHECK(biases.empty() || biases.size() == weights.size())
      << "a bias for each weight or none";
  return ColumnLinear::apply(x, at::TensorList(weights), at::TensorList(biases), tp);
}

Tensor row_linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                  const TensorParallel& tp) {
  std::vector<Tensor> biases;
  // With several ranks the products are summed first: a bias inside would be added once for each
  // rank.
  if (bias.defined() && !tp.active()) biases.push_back(bias);
  const Tensor y =
      ColumnLinear::apply(x, at::TensorList(weight), at::TensorList(biases), TensorParallel{})[0];
  if (!tp.active()) return y;
  const Tensor sum = leave_block(y, tp);
  return bias.defined() ? sum + bias : sum;
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps, bool unit_offset) {
  if (fused_path(x) && fused_path(weight))
    return RmsNorm::apply(x, unit_offset ? weight + 1 : weight, eps);
  if (norm_has_kernels(x, weight)) return device_rms_norm(x, weight, eps, unit_offset);
  return operator_rms_norm(x, weight, eps, unit_offset);
}

std::pair<Tensor, Tensor> add_rms_norm(const Tensor& a, const Tensor& b, const Tensor& weight,
                                       double eps, bool unit_offset) {
  if (fused_path(a) && fused_path(b) && fused_path(weight)) {
    variable_list result = AddRmsNorm::apply(a, b, unit_offset ? weight + 1 : weight, eps);
    return {result[0], result[1]};
  }
  if (norm_has_kernels(a, weight) && has_kernels(b, weight))
    return device_add_rms_norm(a, b, weight, eps, unit_offset);
  const Tensor sum = a + b;
  return {sum, operator_rms_norm(sum, weight, eps, unit_offset)};
}

Tensor head_norm(const Tensor& x, const Tensor& weight, const HeadNorms& norms, int64_t head_dim) {
  if (!weight.defined()) return x;
  return rms_norm(x.view({-1, head_dim}), weight, norms.eps, norms.unit_offset).view(x.sizes());
}

Tensor gated(const Tensor& gate, const Tensor& up, Activation activation) {
  const bool silu = activation == Activation::kSilu;
  if (fused_path(gate) && fused_path(up))
    return silu ? SwiGlu::apply(gate, up) : GeGlu::apply(gate, up);
  if (has_kernels(gate, up)) return device_gated(gate, up, activation);
  return (silu ? at::silu(gate) : at::gelu(gate, "tanh")) * up;
}

Tensor checkpointed(const LayerBody& body, const Tensor& x, const std::vector<Tensor>& parameters) {
  return Checkpointed::apply(body, x, at::TensorList(parameters));
}

}  // namespace retort::models

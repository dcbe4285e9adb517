#include "recipes/losses/detail/linear_head.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "parallel/gradient_sink.h"
#include "parallel/staged_copy.h"
#include "recipes/losses/detail/head_products.h"

namespace retort::losses::detail {
namespace {

std::string shape_of(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes() << " " << tensor.scalar_type();
  return text.str();
}

void require(bool ok, const char* message, const char* key, const at::Tensor& tensor) {
  if (!ok) throw Error(ErrorCode::kInvalidArgument, message).with(key, shape_of(tensor));
}

void check_head_shapes(const LinearHead& head, const at::Tensor& targets, int64_t vocab) {
  const auto& [hidden, weight, bias, softcap] = head;
  require(hidden.defined() && hidden.dim() == 2 && at::isFloatingType(hidden.scalar_type()),
          "hidden must be [R, H] of a float dtype", "hidden", hidden);
  require(weight.defined() && weight.dim() == 2 && at::isFloatingType(weight.scalar_type()) &&
              weight.size(1) == hidden.size(1) && vocab > 0 && weight.size(0) <= vocab,
          "weight must be [V, H] of a float dtype, with the H of hidden and no more rows than the "
          "vocabulary",
          "weight", weight);
  if (bias.defined())
    require(
        bias.dim() == 1 && at::isFloatingType(bias.scalar_type()) && bias.size(0) == weight.size(0),
        "bias must be [V] of a float dtype, with the V of weight", "bias", bias);
  require(targets.defined() && targets.dim() == 1 && targets.scalar_type() == at::kLong &&
              targets.size(0) == hidden.size(0),
          "targets must be [R] int64, one for each row of hidden", "targets", targets);
  if (!(softcap >= 0 && std::isfinite(softcap)))
    throw Error(ErrorCode::kInvalidArgument, "softcap must be 0 (none) or positive and finite")
        .with("softcap", softcap);
}

void check_head_devices(const LinearHead& head, const at::Tensor& targets) {
  const auto& [hidden, weight, bias, softcap] = head;
  for (const at::Tensor& tensor : {weight, bias})
    if (tensor.defined() && tensor.device() != hidden.device())
      throw Error(ErrorCode::kInvalidArgument, "hidden, weight and bias must be on one device")
          .with("device", tensor.device().str())
          .with("hidden_device", hidden.device().str());
  if (!may_move_to(hidden.device(), targets))
    throw Error(ErrorCode::kInvalidArgument,
                "targets must be on the device of hidden, or on the host")
        .with("device", targets.device().str())
        .with("hidden_device", hidden.device().str());
}

// Targets on a device are copied to the host for this, and waited for: a wrong id would read or
// write beside a row.
void check_target_ids(const at::Tensor& targets, int64_t vocab) {
  const at::Tensor flat = targets.to(at::kCPU).contiguous();
  const int64_t* ids = flat.data_ptr<int64_t>();
  for (int64_t row = 0; row < flat.size(0); ++row)
    if (ids[row] < 0 || ids[row] >= vocab)
      throw Error(ErrorCode::kInvalidArgument,
                  "a target is no id of the vocabulary: pass only the rows that have a target")
          .with("row", row)
          .with("target", ids[row])
          .with("vocab", vocab);
}

// The rows of the next chunk are as many as fit, then whole multiples of the quantum, then the
// rest, so that large products come in few shapes (parallel/gemm.h).
int64_t next_rows(int64_t left, int64_t rows_at_once) {
  if (left >= rows_at_once) return rows_at_once;
  return left > kRowQuantum ? left / kRowQuantum * kRowQuantum : left;
}

// The dtype in which dH is kept until the incoming factor is known. For float16 that factor is a
// loss scale, without which small gradients would be rounded to 0.
at::ScalarType kept_dtype(const at::Tensor& hidden) {
  return hidden.scalar_type() == at::kHalf ? at::kFloat : hidden.scalar_type();
}

// Forms the logits chunk by chunk, lets `loss` turn each chunk into its gradient, and folds that
// into the gradients that `needs` names. No more than a chunk of logits exists at a time.
// Everything runs under no-grad.
HeadGradients run_chunks(const LinearHead& head, int64_t rows_at_once, ChunkLoss& loss,
                         const HeadNeeds& needs) {
  const int64_t rows = head.rows();
  const int64_t vocab = head.vocab();
  const int64_t width = head.hidden.size(1);
  const auto f32 = head.hidden.options().dtype(at::kFloat).requires_grad(false);
  const HeadProducts products(head.hidden, head.weight, head.bias, head.softcap);
  // If nothing but products of bfloat16 will read the gradient, the loss may round it itself. A
  // bias and a softcap read it in float32 first.
  const bool rounds = products.in_bfloat16() && needs.any() && !needs.bias && head.softcap == 0;

  // dH is written once for each row, dW and dbias are sums over the chunks.
  HeadGradients grads;
  if (needs.hidden)
    grads.hidden = at::empty(
        {rows, width}, head.hidden.options().dtype(kept_dtype(head.hidden)).requires_grad(false));
  if (needs.weight)
    grads.weight = rows > 0 ? at::empty({vocab, width}, f32) : at::zeros({vocab, width}, f32);
  if (needs.bias) grads.bias = at::zeros({vocab}, f32);

  for (int64_t begin = 0, count = 0; begin < rows; begin += count) {
    count = next_rows(rows - begin, rows_at_once);
    at::Tensor h = products.rows(begin, count);
    auto [logits, row_weights] = loss.kept(begin, count);
    at::Tensor slopes;  // of a softcap
    at::Tensor factor;  // d(loss) / d(logits), as the products take it
    if (!logits.defined()) {
      logits = products.logits(h, needs.any() ? &slopes : nullptr);
      if (rounds)
        factor = loss.rounded_chunk(begin, count, logits);
      else
        loss.chunk(begin, count, logits, needs.any());
    }

    // `logits` is now d(loss) / d(logits). A kept chunk still lacks the rows' weights, which dbias
    // and dH apply here and dW takes from h.
    if (!needs.any()) continue;
    if (needs.bias)
      grads.bias.add_(row_weights.defined() ? at::mm(logits.t(), row_weights).squeeze(1)
                                            : logits.sum(0));
    if (slopes.defined()) logits.mul_(slopes);
    if (!factor.defined()) factor = products.factor(logits);
    if (needs.hidden)
      products.write_hidden_gradient(grads.hidden.narrow(0, begin, count), factor, row_weights);
    if (needs.weight) {
      if (row_weights.defined()) h = h * row_weights;
      products.add_weight_gradient(grads.weight, factor, h, /*first=*/begin == 0);
    }
  }
  return grads;
}

at::Tensor loss_of(const ChunkLoss& loss, const LinearHead& head) {
  return loss.loss_sum().to(head.hidden.options().dtype(at::kFloat).requires_grad(false));
}

// Returns the gradient times the incoming scalar, in the input's dtype. A factor of 1 needs no pass
// over it.
at::Tensor scaled_on_host(const at::Tensor& gradient, const at::Tensor& scale,
                          at::ScalarType dtype) {
  const double factor = scale.item<double>();
  return factor == 1.0 ? gradient.to(dtype) : gradient.mul(factor).to(dtype);
}

// The same without a look at the scalar, for which the host would have to wait: every gradient is
// multiplied, in place if it has its dtype already.
at::Tensor scaled_on_device(at::Tensor gradient, const at::Tensor& scale, at::ScalarType dtype) {
  if (gradient.scalar_type() == dtype) return gradient.mul_(scale);
  at::Tensor result = at::empty_like(gradient, gradient.options().dtype(dtype));
  at::mul_out(result, gradient, scale);
  return result;
}

at::Tensor scaled(const at::Tensor& gradient, const at::Tensor& scale, at::ScalarType dtype) {
  if (!gradient.defined()) return {};
  return gradient.is_cpu() ? scaled_on_host(gradient, scale, dtype)
                           : scaled_on_device(gradient, scale, dtype);
}

// Adds dW, float32, times a scalar of the device (undefined: 1) to the sum of the weight's
// gradients, if it has one: a weight in bfloat16 on a device, whose dW would be rounded on its way
// there. False: nothing is done.
bool sum_takes(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& scale) {
  if (!gradient.defined() || gradient.is_cpu() || weight.scalar_type() != at::kBFloat16)
    return false;
  parallel::GradientSink* sink = parallel::gradient_sink_of(weight);
  if (sink == nullptr) return false;

  const at::NoGradGuard no_grad;
  auto [sum, is_empty] = sink->take();
  if (!scale.defined() && is_empty)
    sum.copy_(gradient);
  else if (!scale.defined())
    sum.add_(gradient);
  else if (is_empty)
    at::mul_out(sum, gradient, scale);
  else
    sum.addcmul_(gradient, scale);
  return true;
}

class HeadFunction : public torch::autograd::Function<HeadFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& hidden,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            double softcap, int64_t rows_at_once, ChunkLoss* loss) {
    const LinearHead head{hidden, weight, bias.value_or(at::Tensor()), softcap};
    // The gradients are formed here, while a chunk's logits exist; backward only scales them.
    const HeadGradients grads = run_chunks(head, rows_at_once, *loss, HeadNeeds::of(head));
    // The weight is kept to be asked for the sum of its gradients, nothing of it is read.
    ctx->save_for_backward(
        {grads.hidden, grads.weight, grads.bias, grads.weight.defined() ? weight : at::Tensor()});
    ctx->saved_data["hidden_dtype"] = static_cast<int64_t>(hidden.scalar_type());
    ctx->saved_data["weight_dtype"] = static_cast<int64_t>(weight.scalar_type());
    ctx->saved_data["bias_dtype"] =
        static_cast<int64_t>(head.bias.defined() ? head.bias.scalar_type() : at::kFloat);
    return loss_of(*loss, head);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& incoming) {
    check_differentiated_once("the linear losses are");
    const auto saved = ctx->get_saved_variables();
    HeadGradients grads{saved[0], saved[1], saved[2]};  // undefined where not needed
    const at::Tensor& scale = incoming[0];
    const auto dtype = [&](const char* key) {
      return static_cast<at::ScalarType>(ctx->saved_data[key].toInt());
    };
    if (sum_takes(saved[3], grads.weight, scale)) grads.weight.reset();

    // Autograd wants a gradient for each argument of forward. dH was formed in kept_dtype(), the
    // others in fp32.
    return {scaled(grads.hidden, scale, dtype("hidden_dtype")),
            scaled(grads.weight, scale, dtype("weight_dtype")),
            scaled(grads.bias, scale, dtype("bias_dtype")),
            at::Tensor(),
            at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace

at::Tensor moved_to(const at::Device& device, const at::Tensor& rows) {
  return parallel::staged_to(device, rows);
}

void check_head(const LinearHead& head, const at::Tensor& targets, int64_t vocab) {
  check_head_shapes(head, targets, vocab);
  check_head_devices(head, targets);
  check_target_ids(targets, vocab);
}

void check_chunk_tokens(int64_t chunk_tokens) {
  if (chunk_tokens < 0)
    throw Error(ErrorCode::kInvalidArgument,
                "chunk_tokens must be positive, or 0 for a size chosen from the shapes")
        .with("chunk_tokens", chunk_tokens);
}

int64_t chunk_rows(int64_t asked, int64_t floats_per_row, int64_t bytes) {
  if (asked > 0) return asked;
  const int64_t fitting = bytes / (4 * std::max<int64_t>(floats_per_row, 1));
  return std::max(kRowQuantum, fitting / kRowQuantum * kRowQuantum);
}

void check_differentiated_once(const char* what) {
  if (at::GradMode::is_enabled())
    throw Error(ErrorCode::kInvalidArgument,
                std::string(what) +
                    " differentiable once: the backward pass is no graph of operators; call "
                    "backward without create_graph");
}

HeadNeeds HeadNeeds::of(const LinearHead& head) {
  return {head.hidden.requires_grad(), head.weight.requires_grad(),
          head.bias.defined() && head.bias.requires_grad()};
}

HeadGradients in_dtypes_of(const LinearHead& head, HeadGradients gradients) {
  if (gradients.hidden.defined()) gradients.hidden = gradients.hidden.to(head.hidden.scalar_type());
  if (sum_takes(head.weight, gradients.weight, {})) gradients.weight.reset();
  if (gradients.weight.defined()) gradients.weight = gradients.weight.to(head.weight.scalar_type());
  if (gradients.bias.defined()) gradients.bias = gradients.bias.to(head.bias.scalar_type());
  return gradients;
}

at::Tensor ChunkLoss::rounded_chunk(int64_t begin, int64_t count, at::Tensor logits) {
  chunk(begin, count, logits, /*gradient=*/true);
  return logits.to(at::kBFloat16);
}

bool wants_gradient(const LinearHead& head) {
  return at::GradMode::is_enabled() && HeadNeeds::of(head).any();
}

at::Tensor run_linear_head(const LinearHead& head, int64_t rows_at_once, ChunkLoss& loss) {
  if (wants_gradient(head)) {
    const std::optional<at::Tensor> bias =
        head.bias.defined() ? std::optional(head.bias) : std::nullopt;
    return HeadFunction::apply(head.hidden, head.weight, bias, head.softcap, rows_at_once, &loss);
  }
  run_linear_head_forward(head, rows_at_once, loss);
  return loss_of(loss, head);
}

void run_linear_head_forward(const LinearHead& head, int64_t rows_at_once, ChunkLoss& loss) {
  const at::NoGradGuard no_grad;
  run_chunks(head, rows_at_once, loss, {});
}

HeadGradients run_linear_head_gradients(const LinearHead& head, int64_t rows_at_once,
                                        ChunkLoss& loss, const HeadNeeds& needs) {
  const at::NoGradGuard no_grad;
  return run_chunks(head, rows_at_once, loss, needs);
}

void for_rows(int64_t count, const std::function<void(int64_t, int64_t, int)>& body) {
  at::parallel_for(0, count, 1,
                   [&](int64_t begin, int64_t end) { body(begin, end, at::get_thread_num()); });
}

int row_threads() { return at::get_num_threads(); }

}  // namespace retort::losses::detail

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "base/error.h"
#include "recipes/losses/detail/aten_losses.h"
#include "recipes/losses/detail/aten_softmax.h"
#include "recipes/losses/detail/device_rows.h"
#include "recipes/losses/detail/linear_head.h"

namespace retort::losses::detail {
namespace {

// The numbers that forward makes of all rows, [R] each. max and sum are those of the softmax over
// the whole vocabulary: with them backward does without the group.
struct Rows {
  at::Tensor log_probs;  // float32
  at::Tensor entropy;    // float32, undefined unless asked for
  at::Tensor max;        // float32
  at::Tensor sum;        // float64
};

Rows empty_rows(const at::Tensor& hidden, bool entropy) {
  const auto f32 = hidden.options().dtype(at::kFloat).requires_grad(false);
  const auto row_values = [&](const at::TensorOptions& dtype) {
    return at::empty({hidden.size(0)}, dtype);
  };
  return {row_values(f32), entropy ? row_values(f32) : at::Tensor(), row_values(f32),
          row_values(f32.dtype(at::kDouble))};
}

class ForwardChunks : public ChunkLoss {
 public:
  ForwardChunks(const VocabGroup& vocab, const at::Tensor& targets, double temperature, Rows& rows)
      : vocab_(vocab), targets_(targets), inv_temperature_(1 / temperature), rows_(rows) {}

  void chunk(int64_t begin, int64_t count, at::Tensor logits, bool) override {
    if (!vocab_.split() && has_row_kernels(logits)) return run_kernels(begin, count, logits);
    if (inv_temperature_ != 1) logits.mul_(inv_temperature_);
    TargetSoftmax softmax(vocab_, targets_.narrow(0, begin, count), logits);
    vocab_.max({&softmax.max});
    softmax.exponentials(logits, rows_.entropy.defined());
    vocab_.sum(softmax.sums());
    rows_.log_probs.narrow(0, begin, count).copy_(softmax.log_prob());
    rows_.max.narrow(0, begin, count).copy_(softmax.max);
    rows_.sum.narrow(0, begin, count).copy_(softmax.side.sum);
    if (rows_.entropy.defined()) rows_.entropy.narrow(0, begin, count).copy_(softmax.entropy());
  }
  at::Tensor loss_sum() const override { return {}; }  // there is no scalar

 private:
  void run_kernels(int64_t begin, int64_t count, const at::Tensor& logits) {
    const auto rows = [&](const at::Tensor& all) {
      return all.defined() ? all.narrow(0, begin, count) : all;
    };
    log_prob_rows(logits, rows(targets_), inv_temperature_,
                  {rows(rows_.log_probs), rows(rows_.entropy), rows(rows_.max), rows(rows_.sum)});
  }

  const VocabGroup& vocab_;
  at::Tensor targets_;
  double inv_temperature_;
  Rows& rows_;
};

// d log p / d logits = (1[target] - p) / T, times the row's incoming gradient. That of the entropy,
// where there is one: -p (log p + entropy) / T.
class BackwardChunks : public ChunkLoss {
 public:
  struct Saved {
    at::Tensor targets;
    at::Tensor max;
    at::Tensor sum;
    at::Tensor entropy;  // undefined: it has no gradient
    int64_t begin = 0;   // of this rank's ids
    bool is_split = false;
    double temperature = 1;
  };
  BackwardChunks(Saved saved, const at::Tensor& incoming, const at::Tensor& of_entropy)
      : saved_(std::move(saved)), incoming_(incoming), of_entropy_(of_entropy) {}

  void chunk(int64_t begin, int64_t count, at::Tensor logits, bool) override {
    if (has_kernels(logits)) return run_kernels(begin, count, logits, GradientDtype::kFloat32);

    // The softmax's part, -g / T p, comes from the maximum and the sum that forward kept.
    const double inv_temperature = 1 / saved_.temperature;
    if (inv_temperature != 1) logits.mul_(inv_temperature);
    const auto rows = [&](const at::Tensor& all) { return all.narrow(0, begin, count); };
    const at::Tensor scale = rows(incoming_) * inv_temperature;
    logits.sub_(rows(saved_.max).unsqueeze(1));
    if (of_entropy_.defined()) {
      logits.sub_(as_column(rows(saved_.sum).log(), logits));
      const at::Tensor p = logits.exp();
      const at::Tensor weight = rows(of_entropy_) * inv_temperature;
      // An excluded id has log p = -inf, and 0 times that would be NaN. The clamp keeps it finite,
      // and p = 0 takes it out.
      logits.clamp_min_(-1e4)
          .add_(rows(saved_.entropy).unsqueeze(1))
          .mul_(-weight.unsqueeze(1))
          .sub_(scale.unsqueeze(1))
          .mul_(p);
    } else {
      logits.exp_().mul_(as_column(-scale.to(at::kDouble) / rows(saved_.sum), logits));
    }

    // The target's part, + g / T, belongs to the rank that has the target. The others add 0 to some
    // column.
    if (logits.size(1) == 0) return;
    const at::Tensor index = rows(saved_.targets) - saved_.begin;
    const at::Tensor elsewhere = (index < 0).logical_or_(index >= logits.size(1));
    logits.scatter_add_(1, index.masked_fill(elsewhere, 0).unsqueeze(1),
                        scale.masked_fill(elsewhere, 0).unsqueeze(1));
  }
  at::Tensor rounded_chunk(int64_t begin, int64_t count, at::Tensor logits) override {
    if (!has_kernels(logits)) return ChunkLoss::rounded_chunk(begin, count, logits);
    run_kernels(begin, count, logits, GradientDtype::kBfloat16);
    return over_front(logits);
  }
  at::Tensor loss_sum() const override { return {}; }

 private:
  // The kernels' forward keeps the maximum before it is divided by the temperature, so their rows
  // need their backward.
  bool has_kernels(const at::Tensor& logits) const {
    return !saved_.is_split && has_row_kernels(logits);
  }
  void run_kernels(int64_t begin, int64_t count, const at::Tensor& logits, GradientDtype dtype) {
    const auto rows = [&](const at::Tensor& all) {
      return all.defined() ? all.narrow(0, begin, count).contiguous() : all;
    };
    log_prob_rows_gradient(logits, rows(saved_.targets), 1 / saved_.temperature,
                           {{}, rows(saved_.entropy), rows(saved_.max), rows(saved_.sum)},
                           rows(incoming_), rows(of_entropy_), dtype);
  }

  Saved saved_;
  at::Tensor incoming_, of_entropy_;
};

class AtenLogProbs : public torch::autograd::Function<AtenLogProbs> {
 public:
  // The log-probabilities (and with `entropy` the entropies) are computed already; this only ties
  // them to their inputs.
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx,
                                                const at::Tensor& hidden, const at::Tensor& weight,
                                                const std::optional<at::Tensor>& bias,
                                                const at::Tensor& targets, const Rows* rows,
                                                bool entropy, int64_t begin, bool is_split,
                                                double softcap, double temperature,
                                                int64_t rows_at_once) {
    ctx->save_for_backward({hidden, weight, bias.value_or(at::Tensor()), targets, rows->max,
                            rows->sum, entropy ? rows->entropy.clone() : at::Tensor()});
    ctx->saved_data["begin"] = begin;
    ctx->saved_data["is_split"] = is_split;
    ctx->saved_data["softcap"] = softcap;
    ctx->saved_data["temperature"] = temperature;
    ctx->saved_data["rows_at_once"] = rows_at_once;
    if (entropy) return {rows->log_probs, rows->entropy};
    return {rows->log_probs};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& incoming) {
    check_differentiated_once("linear_log_probs is");
    const auto saved = ctx->get_saved_variables();
    const LinearHead head{saved[0], saved[1], saved[2], ctx->saved_data["softcap"].toDouble()};
    BackwardChunks chunks(
        {saved[3], saved[4], saved[5], saved[6], ctx->saved_data["begin"].toInt(),
         ctx->saved_data["is_split"].toBool(), ctx->saved_data["temperature"].toDouble()},
        incoming[0], incoming.size() > 1 ? incoming[1] : at::Tensor());
    const int64_t rows_at_once = ctx->saved_data["rows_at_once"].toInt();
    const HeadGradients grads = in_dtypes_of(
        head, run_linear_head_gradients(head, rows_at_once, chunks, HeadNeeds::of(head)));
    const at::Tensor none;
    return {grads.hidden, grads.weight, grads.bias, none, none, none, none, none, none, none, none};
  }
};

}  // namespace

LogProbs aten_log_probs(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                        const at::Tensor& targets, const LogProbsOptions& options,
                        const parallel::VocabShard& shard, double softcap) {
  const LinearHead head{hidden, weight, bias, softcap};
  std::optional<VocabGroup> vocab;
  check_together(shard, [&] {
    check_head(head, targets, vocab_total(shard, weight));
    check_log_probs_options(options);
    vocab.emplace(shard, head.vocab());
  });

  // Forward runs without autograd, which would keep the logits of every chunk.
  const at::Tensor ids = moved_to(hidden.device(), targets).contiguous();
  Rows rows = empty_rows(hidden, options.entropy);
  ForwardChunks chunks(*vocab, ids, options.temperature, rows);
  const int64_t rows_at_once = logit_chunk_rows(options.chunk_tokens, *vocab, hidden.device());
  run_linear_head_forward(head, rows_at_once, chunks);

  // Autograd sees one node, which forms the logits again in backward.
  LogProbs result{rows.log_probs, rows.entropy};
  if (wants_gradient(head)) {
    const std::optional<at::Tensor> optional_bias =
        bias.defined() ? std::optional(bias) : std::nullopt;
    const torch::autograd::variable_list tied = AtenLogProbs::apply(
        hidden, weight, optional_bias, ids, &rows, options.entropy_gradient, vocab->begin(),
        vocab->split(), softcap, options.temperature, rows_at_once);
    result.log_probs = tied[0];
    if (options.entropy_gradient) result.entropy = tied[1];
  }
  return result;
}

}  // namespace retort::losses::detail

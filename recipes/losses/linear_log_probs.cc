#include "recipes/losses/linear_log_probs.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "recipes/losses/detail/aten_losses.h"
#include "recipes/losses/detail/linear_head.h"
#include "recipes/losses/detail/row_kernels.h"
#include "recipes/losses/detail/vocab_group.h"

namespace retort::losses {
namespace {

// Runs the row kernel on a row, after dividing its logits by the temperature.
class LogProbChunks : public detail::ChunkLoss {
 public:
  LogProbChunks(const at::Tensor& targets, int64_t vocab, double temperature)
      : targets_(targets.contiguous()),
        vocab_(vocab),
        inv_temperature_(static_cast<float>(1 / temperature)) {}

  at::Tensor loss_sum() const override { return {}; }  // there is no scalar

 protected:
  float inv_temperature() const { return inv_temperature_; }

  detail::RowResult run_row(int64_t row, float* logits, const detail::RowLoss& loss) const {
    if (inv_temperature_ != 1.0f)
      for (int64_t i = 0; i < vocab_; ++i)
        logits[i] *= inv_temperature_;
    return kernels_.cross_entropy({logits, vocab_, vocab_, targets_.data_ptr<int64_t>()[row]},
                                  loss);
  }
  int64_t vocab() const { return vocab_; }

 private:
  const detail::RowKernels& kernels_ = detail::row_kernels();
  at::Tensor targets_;
  int64_t vocab_;
  float inv_temperature_;
};

// Forward writes d log p / d logits over the logits while there is room to keep them. Room only
// shrinks, so it is the first chunks that are kept, and backward need not form those again.
class ForwardChunks : public LogProbChunks {
 public:
  // `room`: bytes of chunks that may be kept.
  ForwardChunks(const at::Tensor& targets, int64_t vocab, double temperature, float* log_probs,
                float* entropy, int64_t room)
      : LogProbChunks(targets, vocab, temperature),
        log_probs_(log_probs),
        entropy_(entropy),
        room_(room) {}

  void chunk(int64_t begin, int64_t count, at::Tensor chunk, bool) override {
    room_ -= count * vocab() * 4;
    const detail::RowLoss loss{.ce_weight = -inv_temperature(), .gradient = room_ >= 0};
    float* logits = chunk.data_ptr<float>();
    detail::for_rows(count, [&](int64_t first, int64_t last, int) {
      for (int64_t r = first; r < last; ++r) {
        const detail::RowResult row = run_row(begin + r, logits + r * vocab(), loss);
        log_probs_[begin + r] = static_cast<float>(row.log_prob);
        if (entropy_) entropy_[begin + r] = static_cast<float>(row.entropy);
      }
    });
    if (loss.gradient) kept_.push_back(chunk);
  }
  // The kept d log p / d logits: those of the first chunks, in their order.
  const std::vector<at::Tensor>& kept() const { return kept_; }

 private:
  float* log_probs_;
  float* entropy_;  // may be null
  int64_t room_;
  std::vector<at::Tensor> kept_;
};

// d log p / d logits = 1[target] - p, times the row's incoming gradient; that of the entropy
// besides where there is one.
class BackwardChunks : public LogProbChunks {
 public:
  BackwardChunks(const at::Tensor& targets, int64_t vocab, double temperature,
                 const at::Tensor& incoming, const at::Tensor& of_entropy,
                 std::vector<at::Tensor> kept)
      : LogProbChunks(targets, vocab, temperature),
        incoming_(incoming.contiguous()),
        of_entropy_(of_entropy.defined() ? of_entropy.contiguous() : of_entropy),
        kept_(std::move(kept)) {}

  detail::KeptChunk kept(int64_t begin, int64_t count) override {
    if (next_ == kept_.size()) return {};
    RETORT_CHECK(kept_[next_].size(0) == count) << "another chunk than forward's";
    return {kept_[next_++], incoming_.narrow(0, begin, count).unsqueeze(1)};
  }

  void chunk(int64_t begin, int64_t count, at::Tensor chunk, bool) override {
    float* logits = chunk.data_ptr<float>();
    const float* incoming = incoming_.data_ptr<float>() + begin;
    const float* of_entropy =
        of_entropy_.defined() ? of_entropy_.data_ptr<float>() + begin : nullptr;
    detail::for_rows(count, [&](int64_t first, int64_t last, int) {
      for (int64_t r = first; r < last; ++r)
        run_row(begin + r, logits + r * vocab(),
                {.ce_weight = -incoming[r] * inv_temperature(),
                 .entropy_weight = of_entropy ? of_entropy[r] * inv_temperature() : 0,
                 .gradient = true});
    });
  }

 private:
  at::Tensor incoming_, of_entropy_;
  std::vector<at::Tensor> kept_;
  size_t next_ = 0;
};

class LogProbsFunction : public torch::autograd::Function<LogProbsFunction> {
 public:
  // The log-probabilities (and entropies) are computed already; this only ties them to their
  // inputs.
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx,
                                                const at::Tensor& hidden, const at::Tensor& weight,
                                                const std::optional<at::Tensor>& bias,
                                                const at::Tensor& targets,
                                                const torch::autograd::variable_list* computed,
                                                const std::vector<at::Tensor>* kept, double softcap,
                                                double temperature, int64_t rows_at_once) {
    torch::autograd::variable_list saved{hidden, weight, bias.value_or(at::Tensor()), targets};
    saved.insert(saved.end(), kept->begin(), kept->end());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["softcap"] = softcap;
    ctx->saved_data["temperature"] = temperature;
    ctx->saved_data["rows_at_once"] = rows_at_once;
    return *computed;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& incoming) {
    detail::check_differentiated_once("linear_log_probs is");
    const auto saved = ctx->get_saved_variables();
    const detail::LinearHead head{saved[0], saved[1], saved[2],
                                  ctx->saved_data["softcap"].toDouble()};
    BackwardChunks chunks(saved[3], head.vocab(), ctx->saved_data["temperature"].toDouble(),
                          incoming[0], incoming.size() > 1 ? incoming[1] : at::Tensor(),
                          {saved.begin() + 4, saved.end()});
    const int64_t rows_at_once = ctx->saved_data["rows_at_once"].toInt();
    const detail::HeadGradients grads = detail::in_dtypes_of(
        head,
        detail::run_linear_head_gradients(head, rows_at_once, chunks, detail::HeadNeeds::of(head)));
    const at::Tensor none;
    return {grads.hidden, grads.weight, grads.bias, none, none, none, none, none, none};
  }
};

}  // namespace

void detail::check_log_probs_options(const LogProbsOptions& options) {
  check_chunk_tokens(options.chunk_tokens);
  if (!(options.temperature > 0 && std::isfinite(options.temperature)))
    throw Error(ErrorCode::kInvalidArgument, "temperature must be positive and finite")
        .with("temperature", options.temperature);
  if (options.entropy_gradient && !options.entropy)
    throw Error(ErrorCode::kInvalidArgument, "entropy_gradient has no effect without entropy");
  if (options.kept_bytes < 0)
    throw Error(ErrorCode::kInvalidArgument, "kept_bytes must be 0 or more")
        .with("kept_bytes", options.kept_bytes);
}

LogProbs linear_log_probs(const at::Tensor& hidden, const at::Tensor& weight,
                          const at::Tensor& bias, const at::Tensor& targets,
                          const LogProbsOptions& options, const parallel::VocabShard& vocab,
                          double softcap) {
  if (!vocab.whole() || !detail::on_cpu(hidden))
    return detail::aten_log_probs(hidden, weight, bias, targets, options, vocab, softcap);
  const detail::LinearHead head{hidden, weight, bias, softcap};
  detail::check_head(head, targets, detail::vocab_total(vocab, weight));
  detail::check_log_probs_options(options);
  const detail::VocabGroup whole(vocab, head.vocab());

  // Forward runs without autograd, which would keep the logits of every chunk. A kept chunk can
  // only be scaled by what comes in for its rows; a softcap and the entropy's gradient need the
  // logits themselves, so then nothing is kept.
  const auto f32 = hidden.options().dtype(at::kFloat).requires_grad(false);
  LogProbs result;
  result.log_probs = at::empty({head.rows()}, f32);
  if (options.entropy) result.entropy = at::empty({head.rows()}, f32);
  const bool keeps = detail::wants_gradient(head) && !options.entropy_gradient && softcap == 0;
  ForwardChunks chunks(
      targets, whole.total(), options.temperature, result.log_probs.data_ptr<float>(),
      options.entropy ? result.entropy.data_ptr<float>() : nullptr, keeps ? options.kept_bytes : 0);
  const int64_t rows_at_once = detail::chunk_rows(options.chunk_tokens, head.vocab());
  detail::run_linear_head_forward(head, rows_at_once, chunks);

  // Autograd sees one node. In backward it forms the logits that were not kept a second time.
  if (detail::wants_gradient(head)) {
    const std::optional<at::Tensor> optional_bias =
        bias.defined() ? std::optional(bias) : std::nullopt;
    torch::autograd::variable_list computed{result.log_probs};
    if (options.entropy_gradient) computed.push_back(result.entropy);
    const torch::autograd::variable_list tied =
        LogProbsFunction::apply(hidden, weight, optional_bias, targets, &computed, &chunks.kept(),
                                softcap, options.temperature, rows_at_once);
    result.log_probs = tied[0];
    if (options.entropy_gradient) result.entropy = tied[1];
  }
  return result;
}

}  // namespace retort::losses

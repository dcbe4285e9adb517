// The chunk engine under every loss with a linear head: forms a chunk of logits, lets a ChunkLoss
// turn them into their gradient in place, folds that into dH and dW, and goes on with the next.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace retort::losses::detail {

// The student's side: hidden [R, H], weight [V, H], bias [V] or undefined; V counts the rows that
// this rank holds, maybe none. Logits are the products, with a softcap c > 0 c tanh(products / c),
// plus the bias.
struct LinearHead {
  at::Tensor hidden, weight, bias;
  double softcap = 0;

  int64_t rows() const { return hidden.size(0); }
  int64_t vocab() const { return weight.size(0); }
};

// Row r of a chunk's d(loss) / d(logits) is row_weights[r] * gradient[r].
struct KeptChunk {
  at::Tensor gradient;     // [count, V] float32, only read
  at::Tensor row_weights;  // [count, 1] float32
};

// Says what happens to a chunk of logits. One call at a time, in row order, on the calling thread.
class ChunkLoss {
 public:
  virtual ~ChunkLoss() = default;
  // logits [count, V] float32, contiguous, of rows [begin, begin + count): accumulate the loss and,
  // with `gradient`, overwrite them by the loss's gradient; without, they may be destroyed. No
  // autograd.
  virtual void chunk(int64_t begin, int64_t count, at::Tensor logits, bool gradient) = 0;
  // chunk() with a gradient for products of bfloat16: [count, V] bfloat16, which may lie over the
  // logits.
  virtual at::Tensor rounded_chunk(int64_t begin, int64_t count, at::Tensor logits);
  // The gradient of a chunk that an earlier pass has kept, instead of a call of chunk(), which then
  // need not form the logits; undefined where they have to be formed.
  virtual KeptChunk kept(int64_t /*begin*/, int64_t /*count*/) { return {}; }
  // The loss of all rows: a scalar of any float dtype, which nobody has waited for. Undefined where
  // there is none.
  virtual at::Tensor loss_sum() const = 0;
};

// True if what has a row for each position may be used where `device` is: there already, or on the
// host.
inline bool may_move_to(const at::Device& device, const at::Tensor& rows) {
  return rows.device() == device || rows.is_cpu();
}
// `rows` there, detached: itself, or a copy of a host tensor that the calling thread does not wait
// for (parallel/staged_copy.h). Undefined stays so.
at::Tensor moved_to(const at::Device& device, const at::Tensor& rows);

// kInvalidArgument unless shapes, dtypes (any float; computed in fp32), devices (hidden, weight,
// bias on one; targets there or on the host) and target ids in [0, vocab) fit, the weight having at
// most `vocab` rows, and the softcap is a number that is not negative.
void check_head(const LinearHead& head, const at::Tensor& targets, int64_t vocab);

// kInvalidArgument if negative.
void check_chunk_tokens(int64_t chunk_tokens);

// Rows formed at once: `asked` if positive, else the multiple of 64 (at least 64) whose
// `floats_per_row` * 4 bytes fit `bytes`. A function of sizes alone: the bits of a matrix product
// depend on its row count.
int64_t chunk_rows(int64_t asked, int64_t floats_per_row, int64_t bytes = 16 << 20);

// Runs `loss` over all rows (with a softcap the gradients take another chunk's memory); the scalar
// float32 loss sum, with autograd if grad mode is on and an input requires grad. The gradients are
// formed here (dH in hidden's dtype, in fp32 beside float16; dW and dbias in fp32) and scaled by
// the incoming scalar in backward, where each takes its input's dtype. Differentiable once. With R
// = 0 backward yields zeros. On a device neither direction waits for it; backward scales there what
// it kept where it lies, so that it runs once, also with retain_graph.
at::Tensor run_linear_head(const LinearHead& head, int64_t rows_at_once, ChunkLoss& loss);
// Runs `loss` over all rows without gradients and result.
void run_linear_head_forward(const LinearHead& head, int64_t rows_at_once, ChunkLoss& loss);

// Called in the backward of a loss that computes its gradient itself: kInvalidArgument if that is
// to be differentiated again. `what`: "linear_log_probs is", "the linear losses are".
void check_differentiated_once(const char* what);

// True if grad mode is on and hidden, weight or bias requires grad.
bool wants_gradient(const LinearHead& head);

struct HeadNeeds {
  bool hidden = false, weight = false, bias = false;
  // The inputs of the head that require grad.
  static HeadNeeds of(const LinearHead& head);
  bool any() const { return hidden || weight || bias; }
};
// Undefined where not needed; hidden in its own dtype (fp32 beside float16), weight and bias in
// fp32.
struct HeadGradients {
  at::Tensor hidden, weight, bias;
};
// In a backward pass: each in the dtype of what it is the gradient of, as autograd wants it. Of a
// weight in bfloat16 on a device there is none if the sum of its gradients takes it in float32
// (parallel/gradient_sink.h), which run_linear_head asks for too.
HeadGradients in_dtypes_of(const LinearHead& head, HeadGradients gradients);
// The gradients alone, outside autograd, as a backward that forms the logits again needs them.
HeadGradients run_linear_head_gradients(const LinearHead& head, int64_t rows_at_once,
                                        ChunkLoss& loss, const HeadNeeds& needs);

// body(begin, end, thread) over disjoint ranges of [0, count) on LibTorch's intra-op threads;
// thread < row_threads().
void for_rows(int64_t count, const std::function<void(int64_t, int64_t, int)>& body);
int row_threads();

}  // namespace retort::losses::detail

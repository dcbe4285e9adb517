#include "models/memory_estimate.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "models/attention_plan.h"
#include "models/lora/adapter_elements.h"
#include "models/placement.h"
#include "parallel/gemm.h"
#include "parallel/vocab_shard.h"

namespace retort::models {
namespace {

constexpr int64_t kFloatBytes = 4;
constexpr int64_t kDeviceLogitsBytes = 512 << 20;
constexpr int64_t kMaxScatters = 4;  // reductions of GradBuckets that may be in flight at once

// The sizes of one tensor-parallel rank's slice, in elements of a row.
struct Slice {
  int64_t hidden, head_dim, heads, kv_heads, q, kv, inner, vocab;

  Slice(const ModelConfig& c, int64_t tp)
      : hidden(c.hidden_size),
        head_dim(c.head_dim),
        heads(c.num_attention_heads / tp),
        kv_heads(std::max<int64_t>(1, c.num_key_value_heads / tp)),
        q(heads * head_dim),
        kv(kv_heads * head_dim),
        inner(c.intermediate_size / tp),
        vocab(parallel::vocab_rows_per_rank(c.vocab_size, tp)) {}

  int64_t layer_parameters(const ModelConfig& c) const {
    const int64_t matrices = hidden * (2 * q + 2 * kv + 3 * inner);
    const int64_t norms = (c.output_norms ? 4 : 2) * hidden + (c.qk_norm ? 2 * head_dim : 0);
    const int64_t biases = (c.attention_bias ? q + 2 * kv : 0) +
                           (c.attention_out_bias ? hidden : 0) +
                           (c.mlp_bias ? 2 * inner + hidden : 0);
    return matrices + norms + biases;
  }
};

// The rows of a micro-batch: padded, and those of the residual stream.
struct Rows {
  int64_t all = 0;
  int64_t residual = 0;

  explicit Rows(const TrainingSizes& sizes) {
    const int64_t ranks = sizes.layout.sequence_parallel ? sizes.layout.tp : 1;
    all = (parallel::padded_rows(sizes.tokens) + ranks - 1) / ranks * ranks;
    residual = all / ranks;
  }
};

// Whether norms, swiglu and attention are made of operators, which keep more: fused_path().
bool made_of_operators(const TrainingSizes& sizes) {
  return sizes.layout.device != parallel::Device::kCpu || sizes.dtype_bytes != kFloatBytes;
}

// Of an element of its input, what a norm made of operators keeps: that in fp32, and times 1 / rms,
// with an offset in fp32 too. CUDA's kernel, which knows no offset, keeps the input itself.
int64_t norm_input_bytes(const ModelConfig& config, const TrainingSizes& sizes) {
  if (sizes.layout.device == parallel::Device::kCuda && !config.norm_unit_offset)
    return sizes.dtype_bytes;
  return kFloatBytes + (config.norm_unit_offset ? kFloatBytes : sizes.dtype_bytes);
}

// One for layers with a window and one for those without, where these differ.
int64_t rotary_tables(const ModelConfig& config) {
  const std::vector<int64_t>& windows = config.sliding_window;
  const bool both = std::any_of(windows.begin(), windows.end(), [](int64_t w) { return w > 0; }) &&
                    std::any_of(windows.begin(), windows.end(), [](int64_t w) { return w == 0; });
  return config.sliding_rope && both ? 2 : 1;
}

// The header has the formulas.
int64_t fused_layer_bytes(const ModelConfig& config, const Slice& slice, const Rows& rows) {
  int64_t each = 2 * slice.q + 2 * slice.kv + slice.heads + 3 * slice.inner;
  if (config.qk_norm) each += slice.q + slice.kv + slice.heads + slice.kv_heads;
  int64_t residual = 4 * slice.hidden + 2;
  if (config.output_norms) residual += 2 * slice.hidden + 2;
  return kFloatBytes * (rows.residual * residual + rows.all * each);
}

// Scores that are capped are formed whole: in fp32 their tanh and their softmax are kept.
int64_t capped_score_bytes(const ModelConfig& config, const Slice& slice,
                           const TrainingSizes& sizes) {
  if (config.attn_logit_softcapping == 0) return 0;
  return 2 * kFloatBytes * slice.heads * sizes.tokens *
         (sizes.tokens / std::max<int64_t>(sizes.sequences, 1));
}

int64_t operator_layer_bytes(const ModelConfig& config, const Slice& slice, const Rows& rows,
                             const TrainingSizes& sizes) {
  const int64_t dtype_bytes = sizes.dtype_bytes;
  const int64_t input = norm_input_bytes(config, sizes);
  int64_t norms = 2 * (slice.hidden * (input + dtype_bytes) + kFloatBytes);
  if (config.output_norms) norms += 2 * (slice.hidden * input + kFloatBytes);
  int64_t each =
      dtype_bytes * (3 * slice.q + 2 * slice.kv + 4 * slice.inner) + kFloatBytes * slice.heads;
  if (dtype_bytes < kFloatBytes) each += 2 * dtype_bytes * slice.head_dim;
  if (config.qk_norm)
    each += input * (slice.q + slice.kv) + kFloatBytes * (slice.heads + slice.kv_heads);
  return rows.residual * norms + rows.all * each;
}

// What a layer keeps of a row behind its attention.
int64_t bytes_behind_attention(const ModelConfig& config, const Slice& slice,
                               const TrainingSizes& sizes) {
  const int64_t b = sizes.dtype_bytes, hidden = slice.hidden;
  if (!made_of_operators(sizes))
    return kFloatBytes *
           (2 * hidden + 1 + (config.output_norms ? 2 * hidden + 2 : 0) + 3 * slice.inner);
  const int64_t norm = hidden * norm_input_bytes(config, sizes) + kFloatBytes;
  return norm * (config.output_norms ? 3 : 1) + b * (hidden + slice.q + 4 * slice.inner);
}

// Elements of the masks that AttentionPlan makes for one window, all sequences of one length; the
// halves of one that forks are a sequence and a branch.
int64_t mask_elements(int64_t window, const TrainingSizes& sizes) {
  const int64_t each = sizes.tokens / std::max<int64_t>(sizes.sequences, 1);
  const int64_t length = sizes.forks ? each / 2 : each;

  // One mask for all that is cut into blocks, and those of longer sequences than the window.
  int64_t sum = 0;
  if (sizes.forks || (!made_of_operators(sizes) && cut_into_blocks(length))) {
    const int64_t queries = std::min(block_queries(length), length);
    sum += queries * ((window > 0 ? std::min(length, window - 1) : length) + queries);
  }
  if (window == 0 || length <= window) return sum;

  // The first block, those between, the last one.
  const int64_t step = std::max<int64_t>(window, 128);
  const auto block = [&](int64_t queries) { return queries * (queries + window - 1); };
  const int64_t first = std::min(step, length);
  const int64_t last = length - (length - 1) / step * step;
  sum += first * first;
  if (length > 2 * step) sum += block(step);
  if (length > step && (last != step || length <= 2 * step)) sum += block(last);
  return sum;
}

// Chunks of layers whose micro-batches are between forward and backward, of virtual_pp a stage:
// docs/parallel.md.
int64_t chunks_in_flight(const TrainingSizes& sizes) {
  const parallel::Layout& l = sizes.layout;
  if (l.pp == 1) return 1;
  if (l.virtual_pp == 1) return std::min(l.pp - sizes.stage, sizes.micro_batches);
  return std::min(2 * (l.pp - sizes.stage - 1) + (l.virtual_pp - 1) * l.pp + 1,
                  sizes.micro_batches * l.virtual_pp);
}

class Estimate {
 public:
  Estimate(const ModelConfig& config, const TrainingSizes& sizes)
      : config_(config), sizes_(sizes), slice_(config, sizes.layout.tp), rows_(sizes) {
    // Any row may have a target, but a classifier reads one of each sequence and branch.
    if (config.classifies() && !sizes.layout.sequence_parallel) {
      const int64_t scored = sizes.sequences * (sizes.forks ? 2 : 1);
      end_.all = end_.residual = std::min(rows_.all, parallel::padded_rows(scored));
    }

    // The layers of this stage, and which of them backward computes again.
    const Placement placement{
        .pp = sizes.layout.pp, .stage = sizes.stage, .virtual_pp = sizes.layout.virtual_pp};
    std::set<int64_t> own_layers;
    for (int64_t chunk = 0; chunk < placement.virtual_pp; ++chunk) {
      const auto [begin, end] = placement.layers(config.num_hidden_layers, chunk);
      for (int64_t i = begin; i < end; ++i) {
        own_layers.insert(i);
        again_.push_back(
            sizes.gradient_checkpointing && i % sizes.gradient_checkpointing_every == 0 ? 1 : 0);
      }
    }
    layers_ = static_cast<int64_t>(again_.size());

    // A mask for each window that there is; forks need one without a window, too.
    for (const int64_t window :
         std::set<int64_t>(config.sliding_window.begin(), config.sliding_window.end()))
      masks_ += bytes(mask_elements(window, sizes));

    // The embedding before them, the final norm and a head of its own behind them.
    first_ = sizes.stage == 0;
    last_ = sizes.stage == sizes.layout.pp - 1;
    layer_parameters_ = slice_.layer_parameters(config);
    const int64_t table = slice_.vocab * slice_.hidden;
    before_layers_ = first_ ? table : 0;
    const bool own_head = !config.tie_word_embeddings || !first_;
    const int64_t head = config.classifies() ? config.classifier.num_labels * slice_.hidden : table;
    after_layers_ = last_ ? slice_.hidden + (own_head ? head : 0) : 0;

    // What is trained: all of it, or factors beside the layers' matrices.
    layer_trained_ = layer_parameters_;
    trained_after_layers_ = after_layers_;
    if (!sizes.lora) return;
    factors_ = adapter_elements(config, *sizes.lora, sizes.layout.tp, own_layers);
    layer_trained_ = factors_.most_of_layer;
    trained_after_layers_ = factors_.behind_layers;
  }

  TrainingMemory result() const;

 private:
  int64_t bytes(int64_t elements) const { return elements * sizes_.dtype_bytes; }
  int64_t residual() const { return bytes(rows_.residual * slice_.hidden); }
  // What the final norm keeps beside its result: its input, and made of operators that in fp32
  // and times 1 / rms.
  int64_t final_norm() const {
    const int64_t elements = end_.residual * slice_.hidden;
    return made_of_operators(sizes_) ? elements * norm_input_bytes(config_, sizes_)
                                     : bytes(elements);
  }
  int64_t parameters() const {
    return before_layers_ + layers_ * layer_parameters_ + after_layers_ + factors_.all;
  }
  int64_t trained() const { return sizes_.lora ? factors_.all : parameters(); }
  int64_t layer() const {
    const int64_t own = made_of_operators(sizes_)
                            ? operator_layer_bytes(config_, slice_, rows_, sizes_)
                            : fused_layer_bytes(config_, slice_, rows_);
    const int64_t reduced =
        sizes_.lora ? bytes(rows_.all * sizes_.lora->r) * factors_.most_modules : 0;
    return own + reduced + capped_score_bytes(config_, slice_, sizes_);
  }
  // What layer() has of rows that do not go on behind the attention of the model's last layer.
  int64_t left_out(int64_t index) const {
    if (!last_ || index != layers_ - 1) return 0;
    return (rows_.all - end_.all) * bytes_behind_attention(config_, slice_, sizes_);
  }
  // Of one micro-batch, with the first `layers` not yet through backward.
  int64_t kept(int64_t layers) const {
    const int64_t again = std::accumulate(again_.begin(), again_.begin() + layers, int64_t{0});
    const bool keeps_last = layers > 0 && again_[static_cast<size_t>(layers - 1)] == 0;
    return again * residual() + (layers - again) * layer() -
           (keeps_last ? left_out(layers - 1) : 0) +
           rotary_tables(config_) * rows_.all * slice_.head_dim * kFloatBytes + masks_ +
           (last_ ? final_norm() + chosen_rows(layers) : residual());
  }
  // What attention gave for the rows with a target, beside what it gave for all, which it keeps
  // itself where it is one operation: of the last of `layers`.
  int64_t chosen_rows(int64_t layers) const {
    const bool keeps = layers == layers_ && layers > 0 && again_.back() == 0 &&
                       !sizes_.layout.sequence_parallel && !made_of_operators(sizes_);
    return keeps ? bytes(end_.all * slice_.q) : 0;
  }
  // What dropout makes of an adapter's input, and of the gradient by it.
  int64_t dropped() const {
    if (!sizes_.lora || sizes_.lora->lora_dropout == 0) return 0;
    return rows_.all * std::max(slice_.hidden, slice_.inner) * (2 * sizes_.dtype_bytes + 1);
  }
  int64_t arrivals(int64_t gradient_elements) const;
  int64_t in_loss() const;
  int64_t in_layer_backward(int64_t layer) const;

  const ModelConfig& config_;
  const TrainingSizes& sizes_;
  Slice slice_;
  Rows rows_;
  Rows end_ = rows_;         // those that go on behind the last attention
  std::vector<char> again_;  // of this stage's layers: 1 if it is computed again
  int64_t masks_ = 0;        // bytes
  int64_t layers_ = 0;
  int64_t layer_parameters_ = 0;
  int64_t layer_trained_ = 0;
  AdapterElements factors_;
  int64_t before_layers_ = 0;
  int64_t after_layers_ = 0;
  int64_t trained_after_layers_ = 0;
  bool first_ = false;
  bool last_ = false;
};

// What sharded reductions of so many gradient elements have received and not yet summed.
int64_t Estimate::arrivals(int64_t gradient_elements) const {
  const parallel::Layout& l = sizes_.layout;
  if (!l.distributed_optimizer || l.dp == 1) return 0;
  return std::min(kMaxScatters * sizes_.bucket_bytes, gradient_elements * kFloatBytes) / l.dp *
         (l.dp - 1);
}

// In forward, while the last part's chunks run; behind it, when the gradients of all parts are
// added up.
int64_t Estimate::in_loss() const {
  // A classifier forms a few numbers from its rows.
  if (config_.classifies()) return bytes(end_.all * slice_.hidden);
  const LossSizes& loss = sizes_.loss;
  const bool on_device = sizes_.layout.device != parallel::Device::kCpu;
  const bool half = sizes_.dtype_bytes < kFloatBytes;
  const int64_t table = slice_.vocab * slice_.hidden * kFloatBytes;
  const bool trains_head = !sizes_.lora || factors_.head;
  const int64_t weight_gradient = trains_head ? table : 0;
  const int64_t rows = bytes(sizes_.tokens * slice_.hidden);

  // Hidden states of rows with a target, and what the parts have formed. With sequence parallelism
  // those rows are chosen behind the model, and lie there twice.
  const int64_t chosen_behind = sizes_.layout.sequence_parallel ? rows : 0;
  const int64_t kept_rows = sizes_.float16 ? sizes_.tokens * slice_.hidden * kFloatBytes : rows;
  const int64_t given = bytes(rows_.all * slice_.hidden) + chosen_behind;
  const int64_t formed = given + loss.parts * (kept_rows + weight_gradient);

  // A chunk's buffers, and weights that are not fp32 once more.
  const int64_t most = on_device ? kDeviceLogitsBytes : loss.logits_bytes;
  const int64_t all = sizes_.tokens * slice_.vocab * kFloatBytes;
  const bool operators = sizes_.layout.tp > 1 || on_device;
  const int64_t kept = operators ? 0 : std::min(loss.kept_logits_bytes, all);
  const int64_t logits = kept < all ? std::min(most, all) : 0;
  const int64_t slopes = config_.final_logit_softcapping > 0 ? logits : 0;
  int64_t running = kept + logits * (operators ? loss.operator_buffers : 1) + slopes;
  const bool widens = !on_device || sizes_.float16;
  if (half) running += widens ? table : logits / 2;  // W, or the gradient in bfloat16
  if (loss.teacher_dtype_bytes < kFloatBytes && widens)
    running += loss.widened_teacher_heads * kFloatBytes;

  // Each gradient in the weights' dtype, where that is not its own or another factor comes to it.
  const int64_t scaled = loss.parts > 1 ? weight_gradient : 0;
  const bool adds_up = trains_head && (half || loss.parts > 1);
  const int64_t sum = adds_up ? bytes(slice_.vocab * slice_.hidden) : 0;
  return std::max(given + loss.naming, formed + std::max(running, scaled + sum));
}

// Behind the swiglu: the gradients of the residual stream, of gate and up. Of a layer computed
// again also all that it keeps and the gradients of its parameters, which come out together: those
// of down_proj then, all at its end.
int64_t Estimate::in_layer_backward(int64_t index) const {
  const int64_t mlp = residual() + bytes(2 * rows_.all * slice_.inner) + dropped();
  if (again_[static_cast<size_t>(index)] == 0) return mlp;
  const int64_t down = sizes_.lora ? sizes_.lora->num_elements(slice_.hidden, slice_.inner)
                                   : slice_.hidden * slice_.inner;
  const int64_t again = layer() - left_out(index) + mlp + bytes(down);
  const int64_t at_end =
      3 * residual() +
      bytes(rows_.all * (slice_.q + 2 * slice_.kv + 2 * slice_.hidden) + layer_trained_);
  return std::max(again, at_end);
}

TrainingMemory Estimate::result() const {
  // All the time, and between forward and backward.
  const parallel::Layout& l = sizes_.layout;
  const int64_t count = parameters();
  TrainingMemory memory;
  memory.parameters = bytes(count + (sizes_.first_adapter ? trained() : 0));
  memory.gradients = trained() * kFloatBytes;
  memory.optimizer = trained() * (sizes_.dtype_bytes < kFloatBytes ? 12 : 8) /
                     (l.distributed_optimizer ? l.dp : 1);
  if (last_) memory.answers = sizes_.loss.teacher_heads + sizes_.loss.answers;
  memory.layer_bytes = layer();
  const int64_t chunks = chunks_in_flight(sizes_);
  memory.activations = kept(layers_) * chunks / l.virtual_pp;

  // The largest of the moments of a step: in the loss, in the backward pass of the last layer.
  int64_t most = memory.activations + (last_ ? in_loss() : 0);
  if (layers_ > 0) most = std::max(most, memory.activations + in_layer_backward(layers_ - 1));

  // The last micro-batch, whose backward pass sends gradients while it frees activations.
  for (int64_t done = 0; done < layers_; ++done)
    most = std::max(most, kept(layers_ - done) + in_layer_backward(layers_ - done - 1) +
                              arrivals(trained_after_layers_ + done * layer_trained_));
  most = std::max(most, arrivals(trained()));
  memory.temporary = most - memory.activations;
  return memory;
}

}  // namespace

TrainingMemory estimate_training_memory(const ModelConfig& config, const TrainingSizes& sizes) {
  check_layout(sizes.layout, config);
  if (sizes.stage < 0 || sizes.stage >= sizes.layout.pp)
    throw Error(ErrorCode::kInvalidArgument, "there is no such pipeline stage")
        .with("stage", sizes.stage)
        .with("pp", sizes.layout.pp);
  if (sizes.gradient_checkpointing_every < 1)
    throw Error(ErrorCode::kInvalidArgument, "gradient_checkpointing_every must be at least 1");
  return Estimate(config, sizes).result();
}

int64_t estimate_forward_memory(const ModelConfig& config, const TrainingSizes& sizes) {
  check_layout(sizes.layout, config);
  const Slice slice(config, sizes.layout.tp);
  const Rows rows(sizes);
  int64_t masks = 0;
  for (const int64_t window :
       std::set<int64_t>(config.sliding_window.begin(), config.sliding_window.end()))
    masks += mask_elements(window, sizes);

  // The last product of a layer is formed while its input is there; before it, silu(gate).
  const int64_t residual = rows.residual * slice.hidden;
  const int64_t inner = rows.all * slice.inner;
  int64_t most = 8 * residual + 3 * inner;
  if (made_of_operators(sizes)) most = std::max(most, 7 * residual + 4 * inner);
  return (most + masks) * sizes.dtype_bytes +
         rotary_tables(config) * rows.all * slice.head_dim * kFloatBytes +
         capped_score_bytes(config, slice, sizes);
}

}  // namespace retort::models

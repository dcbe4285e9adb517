#include "models/memory/memory_estimate.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "models/memory/adapter_elements.h"
#include "models/memory/layer_memory.h"
#include "models/parameters/placement.h"

namespace retort::models {
namespace {

constexpr int64_t kDeviceLogitsBytes = 512 << 20;
constexpr int64_t kMaxScatters = 4;  // reductions of GradBuckets that may be in flight at once

// Counts the chunks of layers, of virtual_pp a stage, whose micro-batches are between forward and
// backward: docs/parallel.md.
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
      end_.all = end_.residual = std::min(rows_.all, product_rows(sizes, scored));
    }

    // Backward may compute some of the layers of this stage again: `again_` says which.
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
    masks_ = bytes(mask_elements(config, sizes));

    // The embedding lies before the layers; the final norm and a head of its own lie behind them.
    first_ = sizes.stage == 0;
    last_ = sizes.stage == sizes.layout.pp - 1;
    layer_parameters_ = slice_.layer_parameters(config);
    const int64_t table = slice_.vocab * slice_.hidden;
    before_layers_ = first_ ? table : 0;
    const bool own_head = !config.tie_word_embeddings || !first_;
    const int64_t head = config.classifies() ? config.classifier.num_labels * slice_.hidden : table;
    after_layers_ = last_ ? slice_.hidden + (own_head ? head : 0) : 0;

    // All of it is trained, or only factors beside the matrices of the layers.
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
  // The final norm keeps its input beside its result; made of operators it keeps that in fp32 and
  // times 1 / rms.
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
    const int64_t reduced =
        sizes_.lora ? bytes(rows_.all * sizes_.lora->r) * factors_.most_modules : 0;
    return layer_bytes(config_, slice_, rows_, sizes_) + reduced;
  }
  // Returns what layer() counts of rows that do not go on behind the attention of the last layer of
  // the model.
  int64_t left_out(int64_t index) const {
    if (!last_ || index != layers_ - 1) return 0;
    return (rows_.all - end_.all) * bytes_behind_attention(config_, slice_, sizes_);
  }
  // Returns what one micro-batch keeps when the first `layers` are not yet through backward.
  int64_t kept(int64_t layers) const {
    const int64_t again = std::accumulate(again_.begin(), again_.begin() + layers, int64_t{0});
    const bool keeps_last = layers > 0 && again_[static_cast<size_t>(layers - 1)] == 0;
    return again * residual() + (layers - again) * layer() -
           (keeps_last ? left_out(layers - 1) : 0) + rotary_table_bytes(config_, slice_, rows_) +
           masks_ + (last_ ? final_norm() + chosen_rows(layers) : residual());
  }
  // Where attention is one operation it keeps what it gave for all rows. What it gave for the rows
  // with a target is kept beside that, in the last of `layers`.
  int64_t chosen_rows(int64_t layers) const {
    const bool keeps = layers == layers_ && layers > 0 && again_.back() == 0 &&
                       !sizes_.layout.sequence_parallel && !made_of_operators(sizes_);
    return keeps ? bytes(end_.all * slice_.q) : 0;
  }
  // Returns what dropout makes of the input of an adapter, and of the gradient by it.
  int64_t dropped() const {
    if (!sizes_.lora || sizes_.lora->lora_dropout == 0) return 0;
    return rows_.all * std::max(slice_.hidden, slice_.inner) * (2 * sizes_.dtype_bytes + 1);
  }
  int64_t arrivals(int64_t gradient_elements) const;
  int64_t in_loss() const;
  int64_t in_layer_backward(int64_t layer) const;

  const ModelConfig& config_;
  const TrainingSizes& sizes_;
  RankSlice slice_;
  MicroBatchRows rows_;
  MicroBatchRows end_ = rows_;  // those that go on behind the last attention
  std::vector<char> again_;     // of this stage's layers: 1 if it is computed again
  int64_t masks_ = 0;           // bytes
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

// Returns what sharded reductions of so many gradient elements have received and not yet summed.
int64_t Estimate::arrivals(int64_t gradient_elements) const {
  const parallel::Layout& l = sizes_.layout;
  if (!l.distributed_optimizer || l.dp == 1) return 0;
  return std::min(kMaxScatters * sizes_.bucket_bytes, gradient_elements * kFloatBytes) / l.dp *
         (l.dp - 1);
}

// Returns the most that the loss takes: in forward, while the chunks of its last part run, or
// behind it, when the gradients of all parts are added up.
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

  // The hidden states of rows with a target are there, and what the parts have formed. With
  // sequence parallelism those rows are chosen behind the model, and lie there twice.
  const int64_t chosen_behind = sizes_.layout.sequence_parallel ? rows : 0;
  const int64_t kept_rows = sizes_.float16 ? sizes_.tokens * slice_.hidden * kFloatBytes : rows;
  const int64_t given = bytes(rows_.all * slice_.hidden) + chosen_behind;
  const int64_t formed = given + loss.parts * (kept_rows + weight_gradient);

  // To them come the buffers of a chunk, and weights that are not fp32 once more in it.
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

  // Each gradient is there in the dtype of the weights too, where that is not its own or another
  // factor comes to it.
  const int64_t scaled = loss.parts > 1 ? weight_gradient : 0;
  const bool adds_up = trains_head && (half || loss.parts > 1);
  const int64_t sum = adds_up ? bytes(slice_.vocab * slice_.hidden) : 0;
  return std::max(given + loss.naming, formed + std::max(running, scaled + sum));
}

// Behind the swiglu there are the gradients of the residual stream, of gate and up. A layer that is
// computed again has also all that it keeps, and the gradients of its parameters, which come out
// together: that of down_proj then, all of them at its end.
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
  // These are there all the time, or between forward and backward.
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

  // The temporary memory is that of the largest moment of a step: in the loss, or in the backward
  // pass of a layer.
  int64_t most = memory.activations + (last_ ? in_loss() : 0);
  if (layers_ > 0) most = std::max(most, memory.activations + in_layer_backward(layers_ - 1));

  // The backward pass of the last micro-batch sends gradients while it frees activations, so each
  // of its layers may be the largest moment.
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
  const RankSlice slice(config, sizes.layout.tp);
  const MicroBatchRows rows(sizes);

  // The last product of a layer is formed while its input is there; before it, silu(gate) is.
  const int64_t residual = rows.residual * slice.hidden;
  const int64_t inner = rows.all * slice.inner;
  int64_t most = 8 * residual + 3 * inner;
  if (made_of_operators(sizes)) most = std::max(most, 7 * residual + 4 * inner);
  return (most + mask_elements(config, sizes)) * sizes.dtype_bytes +
         rotary_table_bytes(config, slice, rows) + capped_score_bytes(config, slice, sizes);
}

}  // namespace retort::models

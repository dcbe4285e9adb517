#include "models/generation/device_step_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"
#include "models/ops/device_functions.h"
#include "models/ops/functions.h"
#include "models/ops/softcap.h"
#include "models/ops/vocab_table.h"
#include "parallel/gemm.h"
#include "parallel/vocab_shard.h"

namespace retort::models {
namespace {

using at::Tensor;

constexpr int64_t kHeadRows = 8192;  // of the head, cast to fp32 at once

// Attends with capped scores, which at::scaled_dot_product_attention cannot do. Queries are [.., Q,
// d], keys and values [.., K, d], `seen` is [.., Q, K].
Tensor capped_attention(const Tensor& queries, const Tensor& keys, const Tensor& values,
                        const Tensor& seen, const ModelConfig& config) {
  const Tensor scores = at::matmul(queries, keys.transpose(-1, -2)) * config.score_scale();
  const Tensor capped =
      softcapped(scores, config.attn_logit_softcapping).masked_fill(seen.logical_not(), -INFINITY);
  return at::matmul(at::softmax(capped, -1, at::kFloat).to(values.scalar_type()), values);
}

}  // namespace

// Gathers all index numbers of a step in one vector, so that they go to the device in a single
// copy: ids, positions and slots of all rows, then the rows, positions and slots of each part.
class DeviceStepModel::Plan {
 public:
  Plan(const std::vector<int32_t>& ids, const std::vector<StepSpan>& spans, int64_t block_tokens)
      : block_tokens_(block_tokens), rows_(static_cast<int64_t>(ids.size())) {
    numbers_.assign(ids.begin(), ids.end());
    for (const StepSpan& span : spans)
      for (int64_t i = 0; i < span.count; ++i)
        numbers_.push_back(span.first_position + i);
    for (const StepSpan& span : spans)
      for (int64_t i = 0; i < span.count; ++i)
        numbers_.push_back(slot(span, span.first_position + i));

    // All spans of one row form one part, because their queries have the same shape. A longer span
    // is a part by itself.
    std::vector<const StepSpan*> drawing;
    for (const StepSpan& span : spans)
      if (span.count == 1) drawing.push_back(&span);
    if (!drawing.empty()) add_part(drawing);
    for (const StepSpan& span : spans)
      if (span.count > 1) add_part({&span});
  }

  void send(at::Device device) {
    all_ = at::from_blob(numbers_.data(), {static_cast<int64_t>(numbers_.size())},
                         at::TensorOptions().dtype(at::kLong))
               .to(device, /*non_blocking=*/false, /*copy=*/true);
  }
  // These are views of what send() copied.
  Tensor ids() const { return all_.narrow(0, 0, rows_); }
  Tensor positions() const { return all_.narrow(0, rows_, rows_); }
  Tensor slots() const { return all_.narrow(0, 2 * rows_, rows_); }
  std::vector<Part> parts() const {
    std::vector<Part> parts;
    int64_t at = 3 * rows_;
    const auto next = [&](int64_t count) {
      at += count;
      return all_.narrow(0, at - count, count);
    };
    for (const Shape& shape : shapes_) {
      Part part{.sequences = shape.sequences,
                .queries = shape.queries,
                .keys = shape.keys,
                .rows = next(shape.sequences * shape.queries),
                .slots = {},
                .positions = {}};
      part.positions = next(shape.sequences * shape.queries).view({shape.sequences, shape.queries});
      part.slots = next(shape.sequences * shape.keys);
      parts.push_back(std::move(part));
    }
    return parts;
  }

 private:
  struct Shape {
    int64_t sequences, queries, keys;
  };

  int64_t slot(const StepSpan& span, int64_t position) const {
    return span.table[position / block_tokens_] * block_tokens_ + position % block_tokens_;
  }

  // Adds a part of spans of equal count. A sequence that is shorter than the longest repeats the
  // slot of its first key for what it lacks; the mask hides those.
  void add_part(const std::vector<const StepSpan*>& spans) {
    Shape shape{
        .sequences = static_cast<int64_t>(spans.size()), .queries = spans[0]->count, .keys = 0};
    for (const StepSpan* span : spans)
      shape.keys = std::max(shape.keys, span->first_position + span->count);
    for (const StepSpan* span : spans)
      for (int64_t i = 0; i < span->count; ++i)
        numbers_.push_back(span->first_row + i);
    for (const StepSpan* span : spans)
      for (int64_t i = 0; i < span->count; ++i)
        numbers_.push_back(span->first_position + i);
    for (const StepSpan* span : spans)
      for (int64_t key = 0; key < shape.keys; ++key)
        numbers_.push_back(slot(*span, key < span->first_position + span->count ? key : 0));
    shapes_.push_back(shape);
  }

  int64_t block_tokens_, rows_;
  std::vector<int64_t> numbers_;
  std::vector<Shape> shapes_;
  Tensor all_;
};

DeviceStepModel::DeviceStepModel(const Decoder& decoder, int64_t num_blocks, int64_t block_tokens)
    : StepModel(decoder, block_tokens), placement_(decoder.placement()), device_(decoder.device()) {
  const c10::NoGradGuard no_grad;
  bind(decoder);
  const auto options = at::TensorOptions().dtype(decoder.dtype()).device(device_);
  for (Layer& layer : layers_) {
    layer.keys = at::empty({num_blocks * block_tokens, kv_heads_, config_.head_dim}, options);
    layer.values = at::empty_like(layer.keys);
  }
}

void DeviceStepModel::bind(const Decoder& decoder) {
  config_ = decoder.config();
  const StepWeights weights(decoder);
  embedding_ = weights.find("model.embed_tokens.weight");
  final_norm_ = weights.find("model.norm.weight");
  head_ = decoder.head().weight.detach();
  rotary_ = RotaryEmbedding(config_.rope, config_.head_dim, device_);
  if (config_.sliding_rope)
    sliding_rotary_ = RotaryEmbedding(*config_.sliding_rope, config_.head_dim, device_);
  layers_.resize(static_cast<size_t>(config_.num_hidden_layers));
  for (size_t i = 0; i < layers_.size(); ++i) {
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    for (size_t t = 0; t < static_cast<size_t>(LayerTensor::kCount); ++t) {
      const auto tensor = static_cast<LayerTensor>(t);
      layers_[i].weights[tensor].reset();  // a merged weight is new: never hold two
      layers_[i].weights[tensor] = weights.find(prefix + layer_tensor_name(tensor));
    }
    layers_[i].window = config_.sliding_window[i];
  }
}

int64_t DeviceStepModel::kv_bytes_of(const Decoder& decoder, int64_t num_blocks,
                                     int64_t block_tokens) {
  const ModelConfig& config = decoder.config();
  return 2 * config.num_hidden_layers * num_blocks * block_tokens * step_kv_heads(decoder) *
         config.head_dim * static_cast<int64_t>(at::elementSize(decoder.dtype()));
}

int64_t DeviceStepModel::kv_bytes() const {
  int64_t bytes = 0;
  for (const Layer& layer : layers_)
    bytes += static_cast<int64_t>(layer.keys.nbytes() + layer.values.nbytes());
  return bytes;
}

Tensor DeviceStepModel::sum_over_ranks(const Tensor& part) const {
  if (placement_.tp_size() == 1) return part;
  // Every rank adds the parts in rank order, so that all ranks have the same bits.
  const Tensor parts = placement_.tp->all_gather(part.contiguous());
  Tensor sum = parts.select(0, 0);
  for (int64_t rank = 1; rank < parts.size(0); ++rank)
    sum = sum + parts.select(0, rank);
  return sum;
}

// Each rank looks up the ids whose rows it holds and gives zeros for the others, so that the sum
// over the ranks has every row.
Tensor DeviceStepModel::looked_up(const Tensor& ids) const {
  if (placement_.tp_size() == 1) return embedding_.index_select(0, ids);
  const int64_t begin =
      parallel::vocab_begin(config_.vocab_size, placement_.tp_size(), placement_.tp_rank());
  const Tensor mine = ids - begin;
  const Tensor is_here = (mine >= 0).logical_and(mine < embedding_.size(0)).unsqueeze(1);
  const Tensor rows = embedding_.index_select(0, mine.clamp(0, embedding_.size(0) - 1));
  return sum_over_ranks(rows * is_here.to(rows.scalar_type()));
}

Tensor DeviceStepModel::norm(const Tensor& x, const Tensor& weight) const {
  return rms_norm(x, weight, config_.rms_norm_eps, config_.norm_unit_offset);
}

Tensor DeviceStepModel::attend_part(const Layer& layer, Part& part, const Tensor& q) const {
  const int64_t group = heads_ / kv_heads_, dim = config_.head_dim;
  // The mask depends on the positions and the window alone: layers of one window share it.
  Tensor& mask = part.masks[layer.window];
  if (!mask.defined()) {
    const Tensor keys = at::arange(part.keys, part.positions.options());
    const Tensor queries = part.positions.unsqueeze(2);
    mask = keys <= queries;
    if (layer.window > 0) mask = mask.logical_and(keys > queries - layer.window);
    mask = mask.unsqueeze(1);
  }

  // The query heads of one kv head become further queries of that head, so that no key is copied
  // for them.
  const Tensor queries = q.view({part.sequences, part.queries, kv_heads_, group, dim})
                             .permute({0, 2, 3, 1, 4})
                             .reshape({part.sequences, kv_heads_, group * part.queries, dim});
  const auto gathered = [&](const Tensor& cache) {
    return cache.index_select(0, part.slots)
        .view({part.sequences, part.keys, kv_heads_, dim})
        .transpose(1, 2);
  };
  const Tensor seen = mask.unsqueeze(2)
                          .expand({part.sequences, 1, group, part.queries, part.keys})
                          .reshape({part.sequences, 1, group * part.queries, part.keys});
  const double cap = config_.attn_logit_softcapping;
  const Tensor keys = gathered(layer.keys);
  const Tensor values = gathered(layer.values);
  const Tensor y =
      cap > 0 ? capped_attention(queries, keys, values, seen, config_)
              : at::scaled_dot_product_attention(queries, keys, values, seen, /*dropout_p=*/0.0,
                                                 /*is_causal=*/false, config_.score_scale());
  return y.reshape({part.sequences, kv_heads_, group, part.queries, dim})
      .permute({0, 3, 1, 2, 4})
      .reshape({part.sequences * part.queries, heads_, dim});
}

// Norms and rotates queries and keys, stores keys and values, and attends.
Tensor DeviceStepModel::attend(Layer& layer, const Tensor& h) {
  const LayerWeights& w = layer.weights;
  const int64_t dim = config_.head_dim;
  const Tensor q_product = parallel::linear_forward(h, w[LayerTensor::kQ], w[LayerTensor::kQBias]);
  const Tensor k_product = parallel::linear_forward(h, w[LayerTensor::kK], w[LayerTensor::kKBias]);
  const Tensor v = parallel::linear_forward(h, w[LayerTensor::kV], w[LayerTensor::kVBias])
                       .view({-1, kv_heads_, dim});
  const HeadNorms norms{.q = w[LayerTensor::kQNorm],
                        .k = w[LayerTensor::kKNorm],
                        .eps = config_.rms_norm_eps,
                        .unit_offset = config_.norm_unit_offset};
  const auto [q, k] = normed_rotated_heads(q_product, k_product, norms,
                                           layer.window > 0 ? sliding_rope_ : rope_, dim);

  // All new keys and values are stored before any part attends, because a row sees its own key and
  // a prompt's rows see one another's.
  layer.keys.index_copy_(0, slots_, k);
  layer.values.index_copy_(0, slots_, v);

  Tensor mixed = at::empty_like(q);
  for (Part& part : parts_)
    mixed.index_copy_(0, part.rows, attend_part(layer, part, q.index_select(0, part.rows)));
  return mixed.view({-1, heads_ * dim});
}

Tensor DeviceStepModel::run_layer(Layer& layer, const Tensor& x) {
  // The ranks' products are summed, so only the first rank adds the bias.
  const auto close = [&](const Tensor& input, const Tensor& weight, const Tensor& bias) {
    return sum_over_ranks(
        parallel::linear_forward(input, weight, placement_.tp_rank() == 0 ? bias : Tensor()));
  };
  const LayerWeights& w = layer.weights;
  const bool output_norms = config_.output_norms;
  Tensor attended = close(attend(layer, norm(x, w[LayerTensor::kInputNorm])), w[LayerTensor::kO],
                          w[LayerTensor::kOBias]);
  if (output_norms) attended = norm(attended, w[LayerTensor::kPostNorm]);
  const Tensor between = x + attended;

  // The MLP works on the sum of the stream and what attention gave.
  const Tensor m =
      norm(between, w[output_norms ? LayerTensor::kPreMlpNorm : LayerTensor::kPostNorm]);
  const Tensor inner =
      gated(parallel::linear_forward(m, w[LayerTensor::kGate], w[LayerTensor::kGateBias]),
            parallel::linear_forward(m, w[LayerTensor::kUp], w[LayerTensor::kUpBias]),
            config_.activation);
  const Tensor mlp = close(inner, w[LayerTensor::kDown], w[LayerTensor::kDownBias]);
  return between + (output_norms ? norm(mlp, w[LayerTensor::kPostMlpNorm]) : mlp);
}

void DeviceStepModel::forward(const std::vector<int32_t>& ids, const std::vector<StepSpan>& spans) {
  const c10::NoGradGuard no_grad;
  Plan plan(ids, spans, block_tokens_);
  plan.send(device_);
  slots_ = plan.slots();
  parts_ = plan.parts();

  // All layers share the rotary tables and, by window, the masks of the parts.
  rope_ = rotary_.table(plan.positions());
  sliding_rope_ = sliding_rotary_ ? sliding_rotary_->table(plan.positions()) : rope_;
  x_ = scaled_embedding(looked_up(plan.ids()), config_);
  for (Layer& layer : layers_)
    x_ = run_layer(layer, x_);
}

void DeviceStepModel::final_states(std::span<const int64_t> rows, float* out) {
  if (rows.empty()) return;
  const c10::NoGradGuard no_grad;
  const Tensor states = norm(
      x_.index_select(
          0, at::tensor(at::ArrayRef<int64_t>(rows.data(), rows.size()), at::kLong).to(device_)),
      final_norm_);
  at::from_blob(out, {static_cast<int64_t>(rows.size()), config_.hidden_size},
                at::TensorOptions().dtype(at::kFloat))
      .copy_(states.to(at::kFloat));
}

void DeviceStepModel::logits(const float* states, int64_t rows, float* out) {
  const c10::NoGradGuard no_grad;
  const auto floats = at::TensorOptions().dtype(at::kFloat);
  const Tensor h = at::from_blob(const_cast<float*>(states), {rows, config_.hidden_size}, floats)
                       .to(device_, /*non_blocking=*/false, /*copy=*/true);
  Tensor mine = at::empty({rows, head_.size(0)}, floats.device(device_));
  // The head is cast to fp32 a piece at a time, so that no fp32 copy of all of it is ever held.
  for (int64_t begin = 0; begin < head_.size(0); begin += kHeadRows) {
    const int64_t count = std::min(kHeadRows, head_.size(0) - begin);
    mine.narrow(1, begin, count).copy_(at::mm(h, head_.narrow(0, begin, count).to(at::kFloat).t()));
  }

  // An all-gather takes parts of one size, so each rank pads its columns to the widest part. The
  // padding is cut off where the parts are joined in rank order.
  if (placement_.tp_size() > 1) {
    const int64_t ranks = placement_.tp_size();
    const int64_t each = parallel::vocab_rows_per_rank(config_.vocab_size, ranks);
    const Tensor parts =
        placement_.tp->all_gather(at::constant_pad_nd(mine, {0, each - mine.size(1)}).contiguous());
    std::vector<Tensor> columns;
    for (int64_t rank = 0; rank < ranks; ++rank)
      columns.push_back(
          parts.select(0, rank).narrow(1, 0,
                                       parallel::vocab_end(config_.vocab_size, ranks, rank) -
                                           parallel::vocab_begin(config_.vocab_size, ranks, rank)));
    mine = at::cat(columns, 1);
  }
  mine = softcapped(mine, config_.final_logit_softcapping);
  at::from_blob(out, {rows, config_.vocab_size}, floats).copy_(mine);
}

void DeviceStepModel::copy_block(int32_t from, int32_t to) {
  const c10::NoGradGuard no_grad;
  const auto block = [&](const Tensor& cache, int64_t index) {
    return cache.narrow(0, index * block_tokens_, block_tokens_);
  };
  for (Layer& layer : layers_) {
    block(layer.keys, to).copy_(block(layer.keys, from));
    block(layer.values, to).copy_(block(layer.values, from));
  }
}

}  // namespace retort::models

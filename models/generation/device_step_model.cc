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
#include <c10/core/GradMode.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "kernels/device_kernels.h"
#include "kernels/launch_shapes.h"
#include "models/generation/paged_decode.h"
#include "models/ops/attention.h"
#include "models/ops/device_functions.h"
#include "models/ops/functions.h"
#include "models/ops/softcap.h"
#include "models/ops/vocab_table.h"
#include "parallel/gemm.h"
#include "parallel/staged_copy.h"
#include "parallel/vocab_shard.h"

namespace retort::models {
namespace {

using at::Tensor;

// Attends with capped scores, which at::scaled_dot_product_attention cannot do. Queries are [.., Q,
// d], keys and values [.., K, d], `seen` is [.., Q, K].
Tensor capped_attention(const Tensor& queries, const Tensor& keys, const Tensor& values,
                        const Tensor& seen, const ModelConfig& config) {
  const Tensor scores = at::matmul(queries, keys.transpose(-1, -2)) * config.score_scale();
  const Tensor capped =
      softcapped(scores, config.attn_logit_softcapping).masked_fill(seen.logical_not(), -INFINITY);
  return at::matmul(at::softmax(capped, -1, at::kFloat).to(values.scalar_type()), values);
}

constexpr int64_t kSampledInts = 4;  // of SampledToken in kernels/sample.cuh

// Draws by kernels/sample.cuh: a block of threads for each RowDraw among the bytes of `draws`, its
// SampledToken to a row of `tokens`.
void sample_rows(const Tensor& logits, const Tensor& draws, Tensor& tokens) {
  // A thread reads four numbers at a time, so that a short row has work for fewer than the table
  // names.
  using kernels::ShapedKernel;
  const int64_t vocab_size = logits.size(1);
  const int64_t most =
      kernels::launch_shape(tokens.size(0) < kernels::kManyDraws ? ShapedKernel::kSampleFew
                                                                 : ShapedKernel::kSampleMany,
                            logits.device())
          .threads;
  const int64_t threads = std::clamp<int64_t>((vocab_size + 127) / 128 * 32, 32, most);
  kernels::launch_kernel(
      *kernels::device_kernels(logits.device()), logits.device(),
      {.name = "retort_sample_rows_f32", .grid_x = tokens.size(0), .block = threads},
      kernels::read_address(logits), kernels::read_address(draws), kernels::write_address(tokens),
      static_cast<int32_t>(vocab_size));
}

}  // namespace

DeviceStepModel::DeviceStepModel(const Decoder& decoder, int64_t num_blocks, int64_t block_tokens,
                                 const Limits& limits)
    : StepModel(decoder, block_tokens),
      placement_(decoder.placement()),
      device_(decoder.device()),
      max_logits_(limits.logits) {
  const c10::NoGradGuard no_grad;
  bind(decoder);
  const auto options = at::TensorOptions().dtype(decoder.dtype()).device(device_);
  for (Layer& layer : layers_) {
    layer.keys = at::empty({num_blocks * block_tokens, kv_heads_, config_.head_dim}, options);
    layer.values = at::empty_like(layer.keys);
  }

  if (decode_has_kernels(layers_[0].keys)) {
    max_decoded_ = std::min(limits.decoded, max_decoded_sequences(layers_[0].keys, heads_));
  } else if (has_draw()) {
    RETORT_LOG(kInfo) << "generation: there is no kernel for heads of " << config_.head_dim
                      << " in " << decoder.dtype() << ": keys and values are gathered in each step";
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

// Its spans begin in this step, so that all keys that they see are among k, and none is read from a
// block.
Tensor DeviceStepModel::attend_packed(const Layer& layer, StepPart& part, const Tensor& q,
                                      const Tensor& k, const Tensor& v) const {
  AttentionPlanPtr& plan = part.plans[layer.window];
  if (!plan) {
    const HeadShape shape{.heads = heads_,
                          .kv_heads = kv_heads_,
                          .head_dim = config_.head_dim,
                          .scale = config_.score_scale(),
                          .softcap = config_.attn_logit_softcapping};
    plan = c10::make_intrusive<AttentionPlan>(shape, part.offsets, std::vector<Fork>{},
                                              layer.window, q.options());
    plan->keep_cu_seqlens(part.offsets_there);
  }
  return rotated_attention(q, k, v, plan).view(q.sizes());
}

Tensor DeviceStepModel::attend_gathered(const Layer& layer, StepPart& part, const Tensor& q) const {
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

  Tensor mixed = at::empty({q.size(0), heads_, dim}, q.options());
  const Tensor queries = q.contiguous();
  const PagedCache cache{.keys = layer.keys, .values = layer.values, .block_tokens = block_tokens_};
  const DecodeScores scores{.scale = config_.score_scale(),
                            .softcap = config_.attn_logit_softcapping,
                            .window = layer.window};
  for (StepPart& part : parts_) {
    const auto rows_of = [&](const Tensor& x) { return x.narrow(0, part.first_row, part.rows()); };
    const Tensor asking = rows_of(queries);
    const Tensor answers = rows_of(mixed);
    switch (part.kind) {
      case StepPart::Kind::kDecoded:
        paged_decode(asking, cache,
                     {.longest = part.keys, .tables = part.tables, .lengths = part.lengths}, scores,
                     answers);
        break;
      case StepPart::Kind::kPacked:
        answers.copy_(attend_packed(layer, part, asking, rows_of(k), rows_of(v)));
        break;
      case StepPart::Kind::kGathered: answers.copy_(attend_gathered(layer, part, asking)); break;
    }
  }
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

  // The MLP works on the sum of the stream and what attention gave.
  const auto [between, m] =
      add_rms_norm(x, attended, w[output_norms ? LayerTensor::kPreMlpNorm : LayerTensor::kPostNorm],
                   config_.rms_norm_eps, config_.norm_unit_offset);
  const Tensor inner =
      gated(parallel::linear_forward(m, w[LayerTensor::kGate], w[LayerTensor::kGateBias]),
            parallel::linear_forward(m, w[LayerTensor::kUp], w[LayerTensor::kUpBias]),
            config_.activation);
  const Tensor mlp = close(inner, w[LayerTensor::kDown], w[LayerTensor::kDownBias]);
  return between + (output_norms ? norm(mlp, w[LayerTensor::kPostMlpNorm]) : mlp);
}

void DeviceStepModel::forward(const std::vector<int32_t>& ids, const std::vector<StepSpan>& spans) {
  const c10::NoGradGuard no_grad;
  StepPlan plan(ids, spans, block_tokens_, max_decoded_);
  plan.send(device_);
  slots_ = plan.slots();
  last_rows_ = plan.last_rows();
  parts_ = plan.parts();

  // All layers share the rotary tables and, by window, the masks of the parts.
  rope_ = rotary_.table(plan.positions());
  sliding_rope_ = sliding_rotary_ ? sliding_rotary_->table(plan.positions()) : rope_;
  x_ = scaled_embedding(looked_up(plan.ids()), config_);
  for (Layer& layer : layers_)
    x_ = run_layer(layer, x_);
}

Tensor DeviceStepModel::final_states() {
  const c10::NoGradGuard no_grad;
  return norm(last_rows_.defined() ? x_.index_select(0, last_rows_) : x_, final_norm_);
}

// The product is of the weights' dtype, with fp32 sums and results.
Tensor DeviceStepModel::logits_of(const Tensor& states) const {
  const Tensor head = head_.t();
  Tensor mine =
      head_.scalar_type() == at::kFloat ? at::mm(states, head) : at::mm(states, head, at::kFloat);

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
  // It is capped in place, so that no second matrix of that size is held.
  if (const double cap = config_.final_logit_softcapping; cap > 0) mine.div_(cap).tanh_().mul_(cap);
  return mine;
}

void DeviceStepModel::logits(const Tensor& states, float* out) {
  const c10::NoGradGuard no_grad;
  at::from_blob(out, {states.size(0), config_.vocab_size}, at::TensorOptions().dtype(at::kFloat))
      .copy_(logits_of(states));
}

bool DeviceStepModel::has_draw() const { return kernels::device_kernels(device_) != nullptr; }

void DeviceStepModel::draw(const Tensor& states, std::span<const RowDraw> draws, Choice* out) {
  const c10::NoGradGuard no_grad;
  const int64_t at_once = std::max<int64_t>(1, max_logits_ / config_.vocab_size);
  // A chunk's rows are counted from its first.
  std::vector<RowDraw> in_chunk(draws.begin(), draws.end());
  for (RowDraw& draw : in_chunk)
    draw.row = static_cast<int32_t>(draw.row % at_once);
  const auto count = std::ssize(draws);
  constexpr auto kBytes = static_cast<int64_t>(sizeof(RowDraw));
  const Tensor rows =
      parallel::staged_to(device_, at::from_blob(in_chunk.data(), {count * kBytes}, at::kByte));
  Tensor tokens = at::empty({count, kSampledInts}, at::TensorOptions(device_).dtype(at::kInt));

  int64_t next = 0;
  for (int64_t first = 0; first < states.size(0); first += at_once) {
    const int64_t num_rows = std::min(at_once, states.size(0) - first);
    const Tensor logits = logits_of(states.narrow(0, first, num_rows));
    const int64_t begin = next;
    while (next < count && draws[static_cast<size_t>(next)].row < first + num_rows)
      ++next;
    Tensor drawn = tokens.narrow(0, begin, next - begin);
    sample_rows(logits, rows.narrow(0, begin * kBytes, (next - begin) * kBytes), drawn);
  }

  // The one place of a step where the host waits for the device.
  const Tensor here = tokens.cpu();
  for (int64_t i = 0; i < count; ++i) {
    const int32_t* const token = here.const_data_ptr<int32_t>() + i * kSampledInts;
    out[i] = {.token = token[0],
              .logp = std::bit_cast<float>(token[1]),
              .sampling_logp = std::bit_cast<float>(token[2])};
  }
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

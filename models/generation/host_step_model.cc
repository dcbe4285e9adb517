#include "models/generation/host_step_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

#include "base/error.h"
#include "models/generation/cpu_kernels/vector_kernels.h"
#include "parallel/vocab_shard.h"

namespace retort::models {
namespace {

constexpr int64_t kQueriesPerTask = 16;
constexpr int64_t kAlign = 16;  // the dimension of a head's values is rounded up to this

int64_t padded(int64_t dim) { return (dim + kAlign - 1) / kAlign * kAlign; }

void grow(std::vector<float>& buffer, int64_t size) {
  if (static_cast<int64_t>(buffer.size()) < size) buffer.resize(static_cast<size_t>(size));
}

}  // namespace

HostStepModel::HostStepModel(const Decoder& decoder, int64_t num_blocks, int64_t block_tokens)
    : StepModel(decoder, block_tokens),
      ranks_(decoder.placement().tp),
      padded_dim_(padded(config_.head_dim)) {
  bind(decoder);
  const c10::InferenceMode inference;
  const auto options = at::TensorOptions().dtype(at::kFloat);
  for (Layer& layer : layers_) {
    layer.keys = at::empty({num_blocks, kv_heads_, padded_dim_ * block_tokens}, options);
    layer.values = at::empty({num_blocks, kv_heads_, padded_dim_ * block_tokens}, options);
    if (padded_dim_ != config_.head_dim)
      layer.values.zero_();  // attention reads the unwritten lanes
  }
}

void HostStepModel::bind(const Decoder& decoder) {
  const c10::InferenceMode inference;
  config_ = decoder.config();
  for (const auto& parameter : decoder.parameters()) {
    if (!parameter.value.is_cpu()) {
      throw Error(ErrorCode::kUnavailable, "generation runs on the CPU; move the model there")
          .with("tensor", parameter.name);
    }
  }

  // Matrices of fp32 and bf16 are read where they lie. The norms are copied to fp32, where a unit
  // offset is added to them.
  const StepWeights weights(decoder);
  embedding_ = weights.find("model.embed_tokens.weight");
  final_norm_ = norm_weight(weights.find("model.norm.weight"), config_);
  head_ = Matrix(decoder.head().weight.detach(), {});
  rotations_ = {RotaryEmbedding(config_.rope, config_.head_dim, at::kCPU), {}, {}};
  sliding_rotations_.reset();
  if (config_.sliding_rope)
    sliding_rotations_ =
        Rotations{RotaryEmbedding(*config_.sliding_rope, config_.head_dim, at::kCPU), {}, {}};
  layers_.resize(static_cast<size_t>(config_.num_hidden_layers));
  for (size_t i = 0; i < layers_.size(); ++i)
    layers_[i].bind(weights, config_, i, ranks_.rank());
}

int64_t HostStepModel::kv_bytes_of(const Decoder& decoder, int64_t num_blocks,
                                   int64_t block_tokens) {
  const ModelConfig& config = decoder.config();
  return 2 * config.num_hidden_layers * num_blocks * block_tokens * step_kv_heads(decoder) *
         padded(config.head_dim) * 4;
}

int64_t HostStepModel::kv_bytes() const {
  int64_t bytes = 0;
  for (const Layer& layer : layers_)
    bytes += static_cast<int64_t>(layer.keys.nbytes() + layer.values.nbytes());
  return bytes;
}

// Looks up the embedding of each id, on the rank that holds its row.
void HostStepModel::embed(const std::vector<int32_t>& ids) {
  const int64_t width = config_.hidden_size;
  const int64_t count = static_cast<int64_t>(ids.size()) * width;
  const int64_t begin = parallel::vocab_begin(config_.vocab_size, ranks_.size(), ranks_.rank());
  const int64_t rows = embedding_.size(0);
  float* const out = ranks_.active() ? ranks_.own_part(count) : x_.data();

  // A rank writes the rows that it has and zeros for the others, so that the sum over the ranks has
  // every row.
  for (size_t r = 0; r < ids.size(); ++r) {
    float* to = out + static_cast<int64_t>(r) * width;
    const int64_t id = ids[r] - begin;
    if (id < 0 || id >= rows) {
      std::fill(to, to + width, 0.0f);
    } else if (embedding_.scalar_type() == at::kFloat) {
      std::memcpy(to, embedding_.const_data_ptr<float>() + id * width,
                  sizeof(float) * static_cast<size_t>(width));
    } else {
      const at::Tensor row = embedding_.select(0, id).to(at::kFloat);
      std::memcpy(to, row.const_data_ptr<float>(), sizeof(float) * static_cast<size_t>(width));
    }
  }
  if (ranks_.active()) {
    std::fill(x_.begin(), x_.begin() + count, 0.0f);
    ranks_.add_parts(x_.data(), count);
  }

  // The factor is rounded to the dtype of the embedding, as the decoder rounds it.
  if (!config_.scaled_embedding) return;
  const float scale = at::scalar_tensor(std::sqrt(static_cast<double>(width)),
                                        at::TensorOptions().dtype(embedding_.scalar_type()))
                          .item()
                          .to<float>();
  for (int64_t i = 0; i < count; ++i)
    x_[static_cast<size_t>(i)] *= scale;
}

// Adds the cosines and sines of positions up to `length`. Those of earlier steps are kept.
void HostStepModel::Rotations::extend(int64_t length) {
  const at::Tensor& frequencies = embedding.inverse_frequencies();
  const int64_t half = frequencies.numel();
  const auto* frequency = frequencies.const_data_ptr<float>();
  const auto factor = static_cast<float>(embedding.attention_factor());
  for (auto position = static_cast<int64_t>(cos.size()) / half; position < length; ++position) {
    for (int64_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(position) * frequency[i];
      cos.push_back(std::cos(angle) * factor);
      sin.push_back(std::sin(angle) * factor);
    }
  }
}

// Cuts the step into attention tasks: some queries of one span with the heads of one kv head.
void HostStepModel::plan_attention(const std::vector<StepSpan>& spans) {
  tasks_.clear();
  span_of_row_.clear();
  longest_ = 0;
  for (size_t s = 0; s < spans.size(); ++s) {
    longest_ = std::max(longest_, spans[s].first_position + spans[s].count);
    span_of_row_.insert(span_of_row_.end(), static_cast<size_t>(spans[s].count),
                        static_cast<int64_t>(s));
    for (int64_t head = 0; head < kv_heads_; ++head) {
      for (int64_t first = 0; first < spans[s].count; first += kQueriesPerTask) {
        tasks_.push_back({static_cast<int64_t>(s), head, first,
                          std::min(kQueriesPerTask, spans[s].count - first)});
      }
    }
  }
}

// Forms h_ = norm(x_), row by row.
void HostStepModel::normalise(const at::Tensor& weight, int64_t rows) {
  const int64_t width = config_.hidden_size;
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  pool_.run(rows, std::max<int64_t>(1, 16384 / width), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      vector_kernels().norm(x_.data() + r * width, weight.const_data_ptr<float>(),
                            h_.data() + r * width, width, eps);
    }
  });
}

// Norms and rotates one row's q and k, and writes its k and v into its block.
void HostStepModel::store(Layer& layer, const StepSpan& span, int64_t row) {
  const int64_t heads = heads_;
  const int64_t kv_heads = kv_heads_;
  const int64_t dim = config_.head_dim;
  const int64_t position = span.first_position + row - span.first_row;
  const VectorKernels& kernels = vector_kernels();
  float* q = q_.data() + row * heads * dim;
  float* k = k_.data() + row * kv_heads * dim;
  const float* v = v_.data() + row * kv_heads * dim;

  // Qwen3 normalises each head before the rotation.
  if (layer.q_norm.defined()) {
    const auto eps = static_cast<float>(config_.rms_norm_eps);
    for (int64_t i = 0; i < heads; ++i)
      kernels.norm(q + i * dim, layer.q_norm.const_data_ptr<float>(), q + i * dim, dim, eps);
    for (int64_t i = 0; i < kv_heads; ++i)
      kernels.norm(k + i * dim, layer.k_norm.const_data_ptr<float>(), k + i * dim, dim, eps);
  }
  const Rotations& rotations =
      layer.window > 0 && sliding_rotations_ ? *sliding_rotations_ : rotations_;
  const int64_t half = rotations.embedding.inverse_frequencies().numel();
  const float* cos = rotations.cos.data() + position * half;
  const float* sin = rotations.sin.data() + position * half;
  kernels.rotate(q, cos, sin, heads, dim, half);
  kernels.rotate(k, cos, sin, kv_heads, dim, half);

  // Within a block keys lie by dimension, [dim, token], and values by token, because attention
  // reads several tokens of one dimension at once, but whole rows of values.
  const int64_t offset = position % block_tokens_;
  const int64_t head_size = padded_dim_ * block_tokens_;
  const int64_t at = span.table[position / block_tokens_] * kv_heads * head_size;
  float* keys = layer.keys.mutable_data_ptr<float>() + at;
  float* values = layer.values.mutable_data_ptr<float>() + at;
  for (int64_t head = 0; head < kv_heads; ++head) {
    for (int64_t d = 0; d < dim; ++d)
      keys[head * head_size + d * block_tokens_ + offset] = k[head * dim + d];
    std::memcpy(values + head * head_size + offset * padded_dim_, v + head * dim,
                sizeof(float) * static_cast<size_t>(dim));
  }
}

AttendTask HostStepModel::attend_task(const Layer& layer, const StepSpan& span,
                                      const Attention& task, float* scratch) {
  const int64_t dim = config_.head_dim;
  const int64_t width = heads_ * dim;
  const int64_t group = heads_ / kv_heads_;
  const int64_t head_size = padded_dim_ * block_tokens_;
  const int64_t at = (span.first_row + task.first) * width + task.head * group * dim;
  return {.q = q_.data() + at,
          .out = mixed_.data() + at,
          .keys = layer.keys.const_data_ptr<float>() + task.head * head_size,
          .values = layer.values.const_data_ptr<float>() + task.head * head_size,
          .table = span.table,
          .scratch = scratch,
          .q_stride = width,
          .block_stride = kv_heads_ * head_size,
          .first_position = span.first_position + task.first,
          .num_queries = task.count,
          .group = group,
          .head_dim = dim,
          .padded_dim = padded_dim_,
          .block_tokens = block_tokens_,
          .window = layer.window,
          .scale = static_cast<float>(config_.score_scale()),
          .softcap = static_cast<float>(config_.attn_logit_softcapping)};
}

// Attends with all rows of the step over the blocks of their sequences. No two tasks write to the
// same row and head of mixed_.
void HostStepModel::attend(const Layer& layer, const std::vector<StepSpan>& spans) {
  scratch_.resize(static_cast<size_t>(pool_.threads()));
  pool_.run(static_cast<int64_t>(tasks_.size()), 2, [&](int64_t begin, int64_t end, int thread) {
    std::vector<float>& scratch = scratch_[static_cast<size_t>(thread)];
    grow(scratch, attend_scratch(longest_, padded_dim_));
    for (int64_t i = begin; i < end; ++i) {
      const Attention& task = tasks_[static_cast<size_t>(i)];
      const StepSpan& span = spans[static_cast<size_t>(task.span)];
      vector_kernels().attend(attend_task(layer, span, task, scratch.data()));
    }
  });
}

// Adds norm(input) to x_, row by row.
void HostStepModel::add_normed(const float* input, const at::Tensor& weight, int64_t rows) {
  const int64_t width = config_.hidden_size;
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  pool_.run(rows, std::max<int64_t>(1, 16384 / width), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      float* normed = h_.data() + r * width;
      float* x = x_.data() + r * width;
      vector_kernels().norm(input + r * width, weight.const_data_ptr<float>(), normed, width, eps);
      for (int64_t i = 0; i < width; ++i)
        x[i] += normed[i];
    }
  });
}

// Adds the last product of a block to the residual stream: x += input matrix^T + bias, summed over
// all ranks. With an output norm it adds the norm of that sum instead.
void HostStepModel::close_block(const Matrix& matrix, const float* input, int64_t rows,
                                const at::Tensor& output_norm) {
  const int64_t width = config_.hidden_size;
  const bool normed = output_norm.defined();
  if (normed) grow(closed_, rows * width);
  float* const out = normed ? closed_.data() : x_.data();

  // add_parts() adds to what is there, so a buffer that is to hold the sum alone begins with zeros.
  if (ranks_.active()) {
    multiply(pool_, input, matrix.in, rows, {{&matrix, ranks_.own_part(rows * width), width}});
    if (normed) std::fill(out, out + rows * width, 0.0f);
    ranks_.add_parts(out, rows * width);
  } else {
    multiply(pool_, input, matrix.in, rows, {{&matrix, out, width, /*add=*/!normed}});
  }
  if (normed) add_normed(out, output_norm, rows);
}

void HostStepModel::run_layer(Layer& layer, const std::vector<StepSpan>& spans, int64_t rows) {
  const int64_t width = config_.hidden_size;
  const int64_t kv_width = layer.k.out;
  const int64_t inner = layer.gate.out;
  normalise(layer.input_norm, rows);
  multiply(pool_, h_.data(), width, rows,
           {{&layer.q, q_.data(), layer.q.out},
            {&layer.k, k_.data(), kv_width},
            {&layer.v, v_.data(), kv_width}});
  // All keys and values of the step are stored before any row attends, because the rows of a prompt
  // see one another's.
  pool_.run(rows, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      store(layer, spans[static_cast<size_t>(span_of_row_[static_cast<size_t>(row)])], row);
    }
  });
  attend(layer, spans);
  close_block(layer.o, mixed_.data(), rows, layer.attention_output_norm);
  normalise(layer.post_norm, rows);
  multiply_gated(pool_, h_.data(), width, rows, layer.gate, layer.up, config_.activation,
                 gate_.data(), up_.data(), inner);
  close_block(layer.down, gate_.data(), rows, layer.mlp_output_norm);
}

void HostStepModel::forward(const std::vector<int32_t>& ids, const std::vector<StepSpan>& spans) {
  const c10::InferenceMode inference;
  const auto rows = static_cast<int64_t>(ids.size());
  // The buffers grow to the largest step so far and are kept.
  grow(x_, rows * config_.hidden_size);
  grow(h_, rows * config_.hidden_size);
  grow(q_, rows * layers_[0].q.out);
  grow(mixed_, rows * layers_[0].q.out);
  grow(k_, rows * layers_[0].k.out);
  grow(v_, rows * layers_[0].k.out);
  grow(gate_, rows * layers_[0].gate.out);
  grow(up_, rows * layers_[0].gate.out);

  // The rotations must reach the longest sequence, which plan_attention() finds.
  plan_attention(spans);
  rotations_.extend(longest_);
  if (sliding_rotations_) sliding_rotations_->extend(longest_);
  embed(ids);
  last_rows_.clear();
  for (const StepSpan& span : spans)
    if (span.last) last_rows_.push_back(span.first_row + span.count - 1);
  for (Layer& layer : layers_)
    run_layer(layer, spans, rows);
}

at::Tensor HostStepModel::final_states() {
  const int64_t width = config_.hidden_size;
  at::Tensor states = at::empty({std::ssize(last_rows_), width}, at::kFloat);
  auto* out = states.mutable_data_ptr<float>();
  for (const int64_t row : last_rows_) {
    vector_kernels().norm(x_.data() + row * width, final_norm_.const_data_ptr<float>(), out, width,
                          static_cast<float>(config_.rms_norm_eps));
    out += width;
  }
  return states;
}

void HostStepModel::logits(const at::Tensor& states, float* out) {
  const int64_t rows = states.size(0);
  products(states.const_data_ptr<float>(), rows, out);
  if (config_.final_logit_softcapping == 0) return;
  const auto cap = static_cast<float>(config_.final_logit_softcapping);
  const int64_t total = config_.vocab_size;
  pool_.run(rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r)
      vector_kernels().softcap(out + r * total, total, 1.0f, cap);
  });
}

// Multiplies states with the head of all ranks: [rows, H] -> [rows, V].
void HostStepModel::products(const float* states, int64_t rows, float* out) {
  if (!ranks_.active()) {
    multiply(pool_, states, config_.hidden_size, rows, {{&head_, out, head_.out}});
    return;
  }

  // An all-gather takes parts of one size, so each part is as wide as the widest; a rank with fewer
  // columns fills up with zeros.
  const int64_t total = config_.vocab_size;
  const int64_t ranks = ranks_.size();
  const int64_t each = parallel::vocab_rows_per_rank(total, ranks);
  float* const own = ranks_.own_part(rows * each);
  multiply(pool_, states, config_.hidden_size, rows, {{&head_, own, each}});
  for (int64_t row = 0; row < rows; ++row)
    std::fill(own + row * each + head_.out, own + (row + 1) * each, 0.0f);

  // The parts are joined in rank order, without what filled them up.
  const float* const parts = ranks_.gather_parts(rows * each);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int64_t begin = parallel::vocab_begin(total, ranks, rank);
    const int64_t count = parallel::vocab_end(total, ranks, rank) - begin;
    for (int64_t row = 0; row < rows; ++row)
      std::memcpy(out + row * total + begin, parts + (rank * rows + row) * each,
                  sizeof(float) * static_cast<size_t>(count));
  }
}

void HostStepModel::copy_block(int32_t from, int32_t to) {
  const c10::InferenceMode inference;
  for (Layer& layer : layers_) {
    layer.keys.select(0, to).copy_(layer.keys.select(0, from));
    layer.values.select(0, to).copy_(layer.values.select(0, from));
  }
}

}  // namespace retort::models

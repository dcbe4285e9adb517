#include "models/generation/host_step_model.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "models/generation/vector_kernels.h"
#include "models/rope.h"
#include "parallel/vocab_shard.h"

namespace retort::models {
namespace {

constexpr int64_t kAlign = 16;  // the dimension of a head's values is rounded up to this
constexpr int64_t kQueriesPerTask = 16;

int64_t padded(int64_t dim) { return (dim + kAlign - 1) / kAlign * kAlign; }

at::Tensor find(const std::vector<parallel::NamedParameter>& parameters, const std::string& name) {
  for (const auto& parameter : parameters) {
    if (parameter.name == name) return parameter.value.detach();
  }
  return {};
}

at::Tensor as_float(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.to(at::kFloat).contiguous() : tensor;
}

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
    if (padded_dim_ != config_.head_dim) layer.values.zero_();  // the lanes that nothing writes
  }
}

void HostStepModel::bind(const Decoder& decoder) {
  const c10::InferenceMode inference;
  config_ = decoder.config();
  cos_.clear();
  sin_.clear();
  const auto parameters = decoder.parameters();
  for (const auto& parameter : parameters) {
    if (!parameter.value.is_cpu()) {
      throw Error(ErrorCode::kUnavailable, "generation runs on the CPU; move the model there")
          .with("tensor", parameter.name);
    }
  }
  embedding_ = find(parameters, "model.embed_tokens.weight");
  final_norm_ = as_float(find(parameters, "model.norm.weight"));
  head_ = Matrix(decoder.head_weight().detach(), {});
  inverse_frequencies_ = rope_inverse_frequencies(config_.rope, config_.head_dim);
  layers_.resize(static_cast<size_t>(config_.num_hidden_layers));
  for (size_t i = 0; i < layers_.size(); ++i)
    bind_layer(i, parameters);
}

void HostStepModel::bind_layer(size_t index,
                               const std::vector<parallel::NamedParameter>& parameters) {
  const std::string prefix = "model.layers." + std::to_string(index) + ".";
  const auto tensor = [&](const char* name) { return find(parameters, prefix + name); };
  const auto matrix = [&](const std::string& name) {
    return Matrix(find(parameters, prefix + name + ".weight"),
                  find(parameters, prefix + name + ".bias"));
  };
  // Closes a block: the ranks' results are summed, so only the first rank has the bias.
  const auto last_matrix = [&](const std::string& name) {
    return ranks_.rank() == 0 ? matrix(name)
                              : Matrix(find(parameters, prefix + name + ".weight"), {});
  };

  // The norms are small: they are kept in fp32. The matrices are read as they lie.
  Layer& layer = layers_[index];
  layer.q = matrix("self_attn.q_proj");
  layer.k = matrix("self_attn.k_proj");
  layer.v = matrix("self_attn.v_proj");
  layer.o = last_matrix("self_attn.o_proj");
  layer.gate = matrix("mlp.gate_proj");
  layer.up = matrix("mlp.up_proj");
  layer.down = last_matrix("mlp.down_proj");
  layer.input_norm = as_float(tensor("input_layernorm.weight"));
  layer.post_norm = as_float(tensor("post_attention_layernorm.weight"));
  layer.q_norm = as_float(tensor("self_attn.q_norm.weight"));
  layer.k_norm = as_float(tensor("self_attn.k_norm.weight"));
  layer.window = config_.sliding_window[index];
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

// Each rank looks up the ids whose rows it holds.
void HostStepModel::embed(const std::vector<int32_t>& ids) {
  const int64_t width = config_.hidden_size;
  const int64_t count = static_cast<int64_t>(ids.size()) * width;
  const int64_t begin = parallel::vocab_begin(config_.vocab_size, ranks_.size(), ranks_.rank());
  const int64_t rows = embedding_.size(0);
  float* const out = ranks_.active() ? ranks_.own_part(count) : x_.data();
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
  if (!ranks_.active()) return;
  std::fill(x_.begin(), x_.begin() + count, 0.0f);
  ranks_.add_parts(x_.data(), count);
}

void HostStepModel::extend_rope(int64_t length) {
  const int64_t half = config_.head_dim / 2;
  const auto* frequency = inverse_frequencies_.const_data_ptr<float>();
  for (auto position = static_cast<int64_t>(cos_.size()) / half; position < length; ++position) {
    for (int64_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(position) * frequency[i];
      cos_.push_back(std::cos(angle));
      sin_.push_back(std::sin(angle));
    }
  }
}

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

// h = norm(x).
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

  // Norms over each head (Qwen3), before the rotation.
  if (layer.q_norm.defined()) {
    const auto eps = static_cast<float>(config_.rms_norm_eps);
    for (int64_t i = 0; i < heads; ++i)
      kernels.norm(q + i * dim, layer.q_norm.const_data_ptr<float>(), q + i * dim, dim, eps);
    for (int64_t i = 0; i < kv_heads; ++i)
      kernels.norm(k + i * dim, layer.k_norm.const_data_ptr<float>(), k + i * dim, dim, eps);
  }
  const float* cos = cos_.data() + position * (dim / 2);
  const float* sin = sin_.data() + position * (dim / 2);
  kernels.rotate(q, cos, sin, heads, dim);
  kernels.rotate(k, cos, sin, kv_heads, dim);

  // A block has keys by dimension, [dim, token], and values by token: both as attention reads them.
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
          .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)))};
}

// Attention of all rows of the step over the blocks of their sequences. Tasks write to different
// rows and heads of mixed_.
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

// x += input matrix^T + bias, over all ranks.
void HostStepModel::close_block(const Matrix& matrix, const float* input, int64_t rows) {
  const int64_t width = config_.hidden_size;
  if (!ranks_.active()) {
    multiply(pool_, input, matrix.in, rows, {{&matrix, x_.data(), width, true}});
    return;
  }
  multiply(pool_, input, matrix.in, rows, {{&matrix, ranks_.own_part(rows * width), width}});
  ranks_.add_parts(x_.data(), rows * width);
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
  pool_.run(rows, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      store(layer, spans[static_cast<size_t>(span_of_row_[static_cast<size_t>(row)])], row);
    }
  });
  attend(layer, spans);
  close_block(layer.o, mixed_.data(), rows);
  normalise(layer.post_norm, rows);
  multiply_gated(pool_, h_.data(), width, rows, layer.gate, layer.up, gate_.data(), up_.data(),
                 inner);
  close_block(layer.down, gate_.data(), rows);
}

void HostStepModel::forward(const std::vector<int32_t>& ids, const std::vector<StepSpan>& spans) {
  const c10::InferenceMode inference;
  const auto rows = static_cast<int64_t>(ids.size());
  grow(x_, rows * config_.hidden_size);
  grow(h_, rows * config_.hidden_size);
  grow(q_, rows * layers_[0].q.out);
  grow(mixed_, rows * layers_[0].q.out);
  grow(k_, rows * layers_[0].k.out);
  grow(v_, rows * layers_[0].k.out);
  grow(gate_, rows * layers_[0].gate.out);
  grow(up_, rows * layers_[0].gate.out);
  plan_attention(spans);
  extend_rope(longest_);
  embed(ids);
  for (Layer& layer : layers_)
    run_layer(layer, spans, rows);
}

void HostStepModel::final_states(std::span<const int64_t> rows, float* out) {
  const int64_t width = config_.hidden_size;
  for (const int64_t row : rows) {
    vector_kernels().norm(x_.data() + row * width, final_norm_.const_data_ptr<float>(), out, width,
                          static_cast<float>(config_.rms_norm_eps));
    out += width;
  }
}

void HostStepModel::logits(const float* states, int64_t rows, float* out) {
  if (!ranks_.active()) {
    multiply(pool_, states, config_.hidden_size, rows, {{&head_, out, head_.out}});
    return;
  }
  const int64_t total = config_.vocab_size;
  const int64_t ranks = ranks_.size();
  const int64_t each = parallel::vocab_rows_per_rank(total, ranks);
  float* const own = ranks_.own_part(rows * each);
  multiply(pool_, states, config_.hidden_size, rows, {{&head_, own, each}});
  for (int64_t row = 0; row < rows; ++row)
    std::fill(own + row * each + head_.out, own + (row + 1) * each, 0.0f);
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

#include "models/memory/layer_memory.h"

#include <algorithm>
#include <set>
#include <vector>

#include "models/ops/attention_plan.h"
#include "parallel/gemm.h"
#include "parallel/vocab_shard.h"

namespace retort::models {
namespace {

// Returns the bytes of an element times 1 / rms, which a norm made of operators keeps; with an
// offset it is in fp32.
int64_t normed_bytes(const ModelConfig& config, int64_t dtype_bytes) {
  return config.norm_unit_offset ? kFloatBytes : dtype_bytes;
}

// Counts the tables: one for layers with a window and one for those without, where these differ.
int64_t rotary_tables(const ModelConfig& config) {
  const std::vector<int64_t>& windows = config.sliding_window;
  const bool both = std::any_of(windows.begin(), windows.end(), [](int64_t w) { return w > 0; }) &&
                    std::any_of(windows.begin(), windows.end(), [](int64_t w) { return w == 0; });
  return config.sliding_rope && both ? 2 : 1;
}

int64_t fused_layer_bytes(const ModelConfig& config, const RankSlice& slice,
                          const MicroBatchRows& rows) {
  int64_t each = 2 * slice.q + 2 * slice.kv + slice.heads + 3 * slice.inner;
  if (config.qk_norm) each += slice.q + slice.kv + slice.heads + slice.kv_heads;
  int64_t residual = 4 * slice.hidden + 2;
  if (config.output_norms) residual += 2 * slice.hidden + 2;
  return kFloatBytes * (rows.residual * residual + rows.all * each);
}

int64_t operator_layer_bytes(const ModelConfig& config, const RankSlice& slice,
                             const MicroBatchRows& rows, const TrainingSizes& sizes) {
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

// Counts the mask elements of one window for sequences of one length. One that forks counts as a
// sequence of one half and a branch of the other.
int64_t masks_of_window(int64_t window, const TrainingSizes& sizes) {
  const int64_t each = sizes.tokens / std::max<int64_t>(sizes.sequences, 1);
  const int64_t length = sizes.forks ? each / 2 : each;

  // One mask serves all that is cut into blocks; sequences that are longer than the window have
  // others.
  int64_t sum = 0;
  if (sizes.forks || (!made_of_operators(sizes) && cut_into_blocks(length))) {
    const int64_t queries = std::min(block_queries(length), length);
    sum += queries * ((window > 0 ? std::min(length, window - 1) : length) + queries);
  }
  if (window == 0 || length <= window) return sum;

  // Blocks of one shape share a mask: the first block has one, those between have one, and the last
  // may have one.
  const int64_t step = std::max<int64_t>(window, 128);
  const auto block = [&](int64_t queries) { return queries * (queries + window - 1); };
  const int64_t first = std::min(step, length);
  const int64_t last = length - (length - 1) / step * step;
  sum += first * first;
  if (length > 2 * step) sum += block(step);
  if (length > step && (last != step || length <= 2 * step)) sum += block(last);
  return sum;
}

}  // namespace

RankSlice::RankSlice(const ModelConfig& c, int64_t tp)
    : hidden(c.hidden_size),
      head_dim(c.head_dim),
      heads(c.num_attention_heads / tp),
      kv_heads(std::max<int64_t>(1, c.num_key_value_heads / tp)),
      q(heads * head_dim),
      kv(kv_heads * head_dim),
      inner(c.intermediate_size / tp),
      vocab(parallel::vocab_rows_per_rank(c.vocab_size, tp)) {}

int64_t RankSlice::layer_parameters(const ModelConfig& c) const {
  const int64_t matrices = hidden * (2 * q + 2 * kv + 3 * inner);
  const int64_t norms = (c.output_norms ? 4 : 2) * hidden + (c.qk_norm ? 2 * head_dim : 0);
  const int64_t biases = (c.attention_bias ? q + 2 * kv : 0) + (c.attention_out_bias ? hidden : 0) +
                         (c.mlp_bias ? 2 * inner + hidden : 0);
  return matrices + norms + biases;
}

int64_t product_rows(const TrainingSizes& sizes, int64_t rows) {
  const bool on_cpu = sizes.layout.device == parallel::Device::kCpu;
  return parallel::padded_rows(rows, on_cpu ? at::kCPU : at::kCUDA);
}

MicroBatchRows::MicroBatchRows(const TrainingSizes& sizes) {
  const int64_t ranks = sizes.layout.sequence_parallel ? sizes.layout.tp : 1;
  all = (product_rows(sizes, sizes.tokens) + ranks - 1) / ranks * ranks;
  residual = all / ranks;
}

bool made_of_operators(const TrainingSizes& sizes) {
  return sizes.layout.device != parallel::Device::kCpu || sizes.dtype_bytes != kFloatBytes;
}

// A norm keeps its input in fp32, and that times 1 / rms. CUDA's kernel, which knows no offset,
// keeps the input itself.
int64_t norm_input_bytes(const ModelConfig& config, const TrainingSizes& sizes) {
  if (sizes.layout.device == parallel::Device::kCuda && !config.norm_unit_offset)
    return sizes.dtype_bytes;
  return kFloatBytes + normed_bytes(config, sizes.dtype_bytes);
}

int64_t layer_bytes(const ModelConfig& config, const RankSlice& slice, const MicroBatchRows& rows,
                    const TrainingSizes& sizes) {
  const int64_t own = made_of_operators(sizes) ? operator_layer_bytes(config, slice, rows, sizes)
                                               : fused_layer_bytes(config, slice, rows);
  return own + capped_score_bytes(config, slice, sizes);
}

int64_t bytes_behind_attention(const ModelConfig& config, const RankSlice& slice,
                               const TrainingSizes& sizes) {
  const int64_t b = sizes.dtype_bytes;
  const int64_t hidden = slice.hidden;
  if (!made_of_operators(sizes))
    return kFloatBytes *
           (2 * hidden + 1 + (config.output_norms ? 2 * hidden + 2 : 0) + 3 * slice.inner);
  const int64_t norm = hidden * norm_input_bytes(config, sizes) + kFloatBytes;
  return norm * (config.output_norms ? 3 : 1) + b * (hidden + slice.q + 4 * slice.inner);
}

int64_t capped_score_bytes(const ModelConfig& config, const RankSlice& slice,
                           const TrainingSizes& sizes) {
  if (config.attn_logit_softcapping == 0) return 0;
  return 2 * kFloatBytes * slice.heads * sizes.tokens *
         (sizes.tokens / std::max<int64_t>(sizes.sequences, 1));
}

int64_t rotary_table_bytes(const ModelConfig& config, const RankSlice& slice,
                           const MicroBatchRows& rows) {
  return rotary_tables(config) * rows.all * slice.head_dim * kFloatBytes;
}

// There is a mask for each window; forks need one without a window, too.
int64_t mask_elements(const ModelConfig& config, const TrainingSizes& sizes) {
  int64_t elements = 0;
  for (const int64_t window :
       std::set<int64_t>(config.sliding_window.begin(), config.sliding_window.end()))
    elements += masks_of_window(window, sizes);
  return elements;
}

}  // namespace retort::models

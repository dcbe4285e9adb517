// What one layer of a training step keeps of a micro-batch on one rank, from sizes alone. Private
// to models/.
#pragma once

#include <cstdint>

#include "models/config/config.h"
#include "models/memory/memory_estimate.h"

namespace retort::models {

inline constexpr int64_t kFloatBytes = 4;  // of an element in fp32

// The sizes of one tensor-parallel rank's slice, in elements of a row.
struct RankSlice {
  int64_t hidden, head_dim, heads, kv_heads, q, kv, inner, vocab;

  RankSlice(const ModelConfig& config, int64_t tp);
  int64_t layer_parameters(const ModelConfig& config) const;
};

// Rows as they go into products: rounded up where the role's device wants that.
int64_t product_rows(const TrainingSizes& sizes, int64_t rows);

// The rows of a micro-batch: all that go into products, and those of the residual stream.
struct MicroBatchRows {
  int64_t all = 0;
  int64_t residual = 0;

  explicit MicroBatchRows(const TrainingSizes& sizes);
};

// True when norms, swiglu and attention are made of operators, which keep more: fused_path().
bool made_of_operators(const TrainingSizes& sizes);

// Bytes that a norm made of operators keeps for an element of its input.
int64_t norm_input_bytes(const ModelConfig& config, const TrainingSizes& sizes);

// What a layer keeps, without its masks and an adapter's factors. memory_estimate.h has the
// formulas.
int64_t layer_bytes(const ModelConfig& config, const RankSlice& slice, const MicroBatchRows& rows,
                    const TrainingSizes& sizes);
// The part of them that it keeps of a row behind its attention.
int64_t bytes_behind_attention(const ModelConfig& config, const RankSlice& slice,
                               const TrainingSizes& sizes);
// Scores that are capped are formed whole: in fp32 their tanh and their softmax are kept.
int64_t capped_score_bytes(const ModelConfig& config, const RankSlice& slice,
                           const TrainingSizes& sizes);

// What the layers share: rotary tables, and elements of the masks that AttentionPlan makes.
int64_t rotary_table_bytes(const ModelConfig& config, const RankSlice& slice,
                           const MicroBatchRows& rows);
int64_t mask_elements(const ModelConfig& config, const TrainingSizes& sizes);

}  // namespace retort::models

#include "models/ops/vocab_table.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "models/ops/functions.h"
#include "parallel/vocab_shard.h"

namespace retort::models {

// No sequence sees the padding, and it is cut off at the end.
at::Tensor vocab_rows(const at::Tensor& table, const at::Tensor& ids, int64_t padding,
                      const ModelConfig& config, const TensorParallel& tp) {
  const auto pad = [&](const at::Tensor& x) {
    return padding > 0 ? at::constant_pad_nd(x, {0, 0, 0, padding}) : x;
  };
  if (!tp.active()) return pad(at::embedding(table, ids, config.pad_token_id));

  // A rank without rows still depends on its empty weight, because every rank takes part in the
  // collectives of the backward pass.
  const int64_t begin =
      parallel::vocab_begin(config.vocab_size, tp.group->size(), tp.group->rank());
  const int64_t rows = table.size(0);
  if (rows == 0)
    return leave_block(
        pad(at::zeros({ids.size(0), config.hidden_size}, table.options()) + table.sum()), tp);

  // One rank has the row of an id and the others give zeros, so that the sum over the ranks is the
  // embedding.
  const at::Tensor local = ids - begin;
  const at::Tensor elsewhere = (local < 0).logical_or(local >= rows);
  const bool pads_here = config.pad_token_id >= begin && config.pad_token_id < begin + rows;
  const at::Tensor found = at::embedding(table, local.masked_fill(elsewhere, 0),
                                         pads_here ? config.pad_token_id - begin : -1);
  return leave_block(pad(found.masked_fill(elsewhere.unsqueeze(1), 0)), tp);
}

at::Tensor scaled_embedding(const at::Tensor& x, const ModelConfig& config) {
  if (!config.scaled_embedding) return x;
  return x * at::scalar_tensor(std::sqrt(static_cast<double>(config.hidden_size)), x.options());
}

at::Tensor vocab_products(const at::Tensor& x, const at::Tensor& head) {
  if (head.scalar_type() == at::kFloat) return row_linear(x, head, {});
  constexpr int64_t kChunk = 8192;  // rows of the head that are upcast at once
  std::vector<at::Tensor> parts;
  for (int64_t row = 0; row < head.size(0); row += kChunk) {
    const int64_t count = std::min(kChunk, head.size(0) - row);
    parts.push_back(row_linear(x, head.narrow(0, row, count).to(at::kFloat), {}));
  }
  return at::cat(parts, 1);
}

}  // namespace retort::models

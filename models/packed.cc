#include "models/packed.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

namespace retort::models {
namespace {

at::Tensor to_tensor(const std::vector<int64_t>& values) {
  at::Tensor out =
      at::empty({static_cast<int64_t>(values.size())}, at::TensorOptions().dtype(at::kLong));
  std::copy(values.begin(), values.end(), out.mutable_data_ptr<int64_t>());
  return out;
}

}  // namespace

PackedTokens pack_rows(const std::vector<std::vector<int32_t>>& rows) {
  PackedTokens packed;
  std::vector<int64_t> ids;
  std::vector<int64_t> positions;
  packed.cu_seqlens.push_back(0);
  for (const std::vector<int32_t>& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      ids.push_back(row[i]);
      positions.push_back(static_cast<int64_t>(i));
    }
    packed.cu_seqlens.push_back(static_cast<int64_t>(ids.size()));
  }
  packed.input_ids = to_tensor(ids);
  packed.positions = to_tensor(positions);
  return packed;
}

PackedTokens wanting(PackedTokens tokens, at::Tensor rows) {
  tokens.wanted = std::move(rows);
  return tokens;
}

at::Tensor rows_at(const at::Tensor& values, const at::Tensor& positions) {
  return values.index_select(0, positions.to(values.device(), at::kLong));
}

}  // namespace retort::models

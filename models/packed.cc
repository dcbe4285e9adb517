#include "models/packed.h"

#include <ATen/ops/empty.h>

#include "base/error.h"

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
  std::vector<int64_t> ids, positions;
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

at::Tensor rows_at(const at::Tensor& values, const at::Tensor& positions) {
  return values.index_select(0, positions.to(values.device(), at::kLong));
}

PackedTokens pack_padded(const at::Tensor& input_ids, const at::Tensor& attention_mask) {
  if (input_ids.dim() != 2 || attention_mask.sizes() != input_ids.sizes()) {
    throw Error(ErrorCode::kInvalidArgument,
                "pack_padded: input_ids and attention_mask must both be [batch, length]");
  }
  const at::Tensor ids = input_ids.to(at::kCPU, at::kLong).contiguous();
  const at::Tensor mask = attention_mask.to(at::kCPU, at::kLong).contiguous();
  const int64_t length = ids.size(1);
  std::vector<std::vector<int32_t>> rows(static_cast<size_t>(ids.size(0)));
  const int64_t* id = ids.const_data_ptr<int64_t>();
  const int64_t* keep = mask.const_data_ptr<int64_t>();
  for (size_t b = 0; b < rows.size(); ++b) {
    int64_t starts = 0;
    for (int64_t t = 0; t < length; ++t) {
      const size_t i = b * static_cast<size_t>(length) + static_cast<size_t>(t);
      if (keep[i] == 0) continue;
      starts += t == 0 || keep[i - 1] == 0;
      rows[b].push_back(static_cast<int32_t>(id[i]));
    }
    if (starts > 1) {
      throw Error(ErrorCode::kInvalidArgument,
                  "pack_padded: padding must stand at the ends of a row, not inside")
          .with("row", b);
    }
  }
  return pack_rows(rows);
}

}  // namespace retort::models

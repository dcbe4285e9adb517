#include "models/ops/packed.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "parallel/staged_copy.h"

namespace retort::models {
namespace {

at::Tensor to_tensor(const std::vector<int64_t>& values) {
  at::Tensor out =
      at::empty({static_cast<int64_t>(values.size())}, at::TensorOptions().dtype(at::kLong));
  std::copy(values.begin(), values.end(), out.mutable_data_ptr<int64_t>());
  return out;
}

Error refusal_of_tokens(const std::string& what) {
  return Error(ErrorCode::kInvalidArgument, "packed tokens: " + what);
}

void check_token_ids(const at::Tensor& ids, int64_t vocab_size) {
  const int64_t* id = ids.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < ids.size(0); ++i) {
    if (id[i] < 0 || id[i] >= vocab_size) {
      throw refusal_of_tokens("a token id lies outside the vocabulary")
          .with("index", i)
          .with("id", id[i])
          .with("vocab_size", vocab_size);
    }
  }
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
  return values.index_select(0, parallel::staged_to(values.device(), positions.to(at::kLong)));
}

void check_packed_tokens(const PackedTokens& tokens, int64_t vocab_size) {
  const std::vector<int64_t>& cu = tokens.cu_seqlens;
  if (cu.empty() || cu.front() != 0 || !std::is_sorted(cu.begin(), cu.end())) {
    throw refusal_of_tokens("cu_seqlens must start with 0 and not decrease");
  }

  // Each token has an id, and the wanted rows are numbers of tokens.
  if (tokens.input_ids.dim() != 1 || tokens.input_ids.scalar_type() != at::kLong ||
      tokens.input_ids.size(0) != cu.back()) {
    throw refusal_of_tokens("input_ids must be int64 of shape [" + std::to_string(cu.back()) +
                            "], as cu_seqlens ends");
  }
  if (tokens.wanted.defined() &&
      (tokens.wanted.dim() != 1 || tokens.wanted.scalar_type() != at::kLong)) {
    throw refusal_of_tokens("the wanted rows must be a vector of int64");
  }

  // Ids on a device are not looked at, because that would wait for the device.
  if (tokens.input_ids.is_cpu()) check_token_ids(tokens.input_ids.contiguous(), vocab_size);
  if (tokens.positions.dim() != 1 || tokens.positions.size(0) != tokens.num_tokens())
    throw refusal_of_tokens("positions must have the shape of input_ids");
}

}  // namespace retort::models

// A teacher's requests: what is refused, and how several become one pack.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "models/ops/packed.h"
#include "roles/teacher/methods.h"

namespace retort::roles {

// Tokens and wanted positions as they travel; all else is to be filled in.
ForwardRequest pack_request(const models::PackedTokens& tokens, const at::Tensor& positions);

// Checks every index before the model sees it: kInvalidArgument when ids, offsets, positions, spec
// or parts are outside what they index. The pack of a good one.
models::PackedTokens unpack_request(const ForwardRequest& request, int64_t vocab_rows);
// PayloadLabel::sequence_hash of the answer.
std::string hash_of(const ForwardRequest& request);
// The token after each wanted position, which must be of the same sequence: [R] int64.
at::Tensor targets_of(const ForwardRequest& request);
// All that can be refused before a forward pass: what unpack_request and, for kTargetLogProbs,
// targets_of and check_targets refuse.
void check_request(const ForwardRequest& request, int64_t vocab_rows);

// Packs laid end to end, and where the wanted rows of each request are then. One request: its pack.
struct MergedPacks {
  models::PackedTokens tokens;
  std::vector<at::Tensor> rows;  // int64
};
MergedPacks merge_packs(const std::vector<ForwardRequest>& requests, int64_t vocab_rows);

}  // namespace retort::roles

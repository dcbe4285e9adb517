#include "roles/teacher/requests.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isin.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"
#include "roles/payload/sharded.h"
#include "rpc/archive.h"

namespace retort::roles {
namespace {

constexpr int64_t kMaxParts = 4096;
constexpr int64_t kMaxSamples = 1 << 20;  // of a row

[[noreturn]] void refuse(const std::string& what, const ForwardRequest& request) {
  throw Error(ErrorCode::kInvalidArgument, "teacher.forward: " + what)
      .with("request", request.request_id)
      .with("step", request.step);
}

void require_vector(const at::Tensor& tensor, const char* name, const ForwardRequest& request) {
  if (!tensor.defined() || tensor.dim() != 1 || tensor.scalar_type() != at::kInt)
    refuse(std::string(name) + " must be a vector of int32", request);
}

void check_parts(const ForwardRequest& request, int64_t vocab) {
  if (request.parts < 1 || request.parts > kMaxParts || request.part < 0 ||
      request.part >= request.parts)
    refuse("part " + std::to_string(request.part) + " of " + std::to_string(request.parts) +
               " cannot be",
           request);
  const std::vector<int64_t>& columns = request.columns;
  if (request.spec.kind != PayloadKind::kFull) {
    if (!columns.empty()) refuse("columns are for full payloads", request);
    return;
  }
  if (columns.empty() && request.parts == 1) return;
  if (columns.size() != static_cast<size_t>(request.parts) + 1 || columns.front() < 0 ||
      columns.back() > vocab || !std::is_sorted(columns.begin(), columns.end()))
    refuse("columns must rise from part to part within the " + std::to_string(vocab) +
               " that both know",
           request);
}

// Checks the ids that the student names: as many as it was asked to name, of the common vocabulary,
// each once in its row.
void check_named(const ForwardRequest& request, int64_t vocab) {
  const at::Tensor& ids = request.ids;
  if (!request.spec.names_ids()) {
    if (ids.defined()) refuse("ids are for topk with support: student or union", request);
    if (request.spec.support != Support::kTeacher) refuse("support is for topk", request);
    return;
  }
  if (!ids.defined()) {
    if (request.parts != 1) refuse("a request that names no ids yet has one part", request);
    return;
  }
  const int64_t k = std::min(request.spec.top_k, vocab);
  if (ids.scalar_type() != at::kInt ||
      ids.sizes() != at::IntArrayRef({request.positions.numel(), k}))
    refuse("ids must be int32, " + std::to_string(k) + " of each wanted row", request);
  if (ids.numel() == 0) return;
  if (ids.min().item<int64_t>() < 0 || ids.max().item<int64_t>() >= vocab)
    refuse("a named id is outside the " + std::to_string(vocab) + " that both know", request);
  const at::Tensor sorted = std::get<0>(at::sort(ids, 1));
  if (sorted.narrow(1, 0, k - 1).eq(sorted.narrow(1, 1, k - 1)).any().item<bool>())
    refuse("a row names one id twice", request);
}

void check_spec(const ForwardRequest& request, int64_t vocab_rows) {
  if (!(request.spec.temperature > 0)) refuse("temperature must be > 0", request);
  if (request.spec.kind == PayloadKind::kTopK && request.spec.top_k <= 0)
    refuse("top_k must be > 0", request);
  if (request.spec.kind == PayloadKind::kSampled &&
      (request.spec.num_samples <= 0 || request.spec.num_samples > kMaxSamples))
    refuse("num_samples must be in [1, " + std::to_string(kMaxSamples) + "]", request);
  check_parts(request, payload_vocab(request.spec, vocab_rows));
}

}  // namespace

std::string result_key(const ForwardRequest& request) {
  // All parts of one answer have one key, by which a single forward pass serves them.
  ForwardRequest any_part = request;
  any_part.part = 0;
  return sha256_hex(rpc::to_bytes(any_part)).substr(0, 32);
}

bool asks_to_keep(const ForwardRequest& request) {
  return request.spec.names_ids() && !request.ids.defined();
}

std::string kept_key(const ForwardRequest& request) {
  // A request that keeps rows has neither ids nor several parts. Without these the one that names
  // ids finds its key.
  ForwardRequest first = request;
  first.ids = at::Tensor();
  first.parts = 1;
  return result_key(first);
}

std::string hash_of(const ForwardRequest& request) {
  return sequence_hash(request.input_ids, request.cu_seqlens, request.positions, request.ids);
}

ForwardRequest pack_request(const models::PackedTokens& tokens, const at::Tensor& positions) {
  ForwardRequest request;
  request.input_ids = tokens.input_ids.to(at::kInt);
  request.cu_seqlens = at::tensor(tokens.cu_seqlens, at::kLong).to(at::kInt);
  request.positions = positions.to(at::kInt);
  return request;
}

models::PackedTokens unpack_request(const ForwardRequest& request, int64_t vocab_rows) {
  check_spec(request, vocab_rows);
  require_vector(request.input_ids, "input_ids", request);
  require_vector(request.cu_seqlens, "cu_seqlens", request);
  require_vector(request.positions, "positions", request);

  const int64_t tokens = request.input_ids.numel();
  models::PackedTokens packed;
  packed.input_ids = request.input_ids.to(at::kLong);
  const at::Tensor offsets = request.cu_seqlens.to(at::kLong).contiguous();
  packed.cu_seqlens.assign(offsets.const_data_ptr<int64_t>(),
                           offsets.const_data_ptr<int64_t>() + offsets.numel());
  if (packed.cu_seqlens.empty() || packed.cu_seqlens.front() != 0 ||
      packed.cu_seqlens.back() != tokens)
    refuse("cu_seqlens must start at 0 and end at the number of tokens, " + std::to_string(tokens),
           request);

  // Positions count from 0 in each sequence, as each is a text of its own.
  packed.positions = at::empty({tokens}, at::kLong);
  int64_t* position = packed.positions.mutable_data_ptr<int64_t>();
  for (size_t s = 0; s + 1 < packed.cu_seqlens.size(); ++s) {
    const int64_t begin = packed.cu_seqlens[s];
    const int64_t end = packed.cu_seqlens[s + 1];
    if (end < begin || end > tokens) refuse("cu_seqlens must not decrease", request);
    for (int64_t i = begin; i < end; ++i)
      position[i] = i - begin;
  }

  // The indices come from the wire, so each is checked against what it indexes.
  if (tokens > 0 && (packed.input_ids.min().item<int64_t>() < 0 ||
                     packed.input_ids.max().item<int64_t>() >= vocab_rows))
    refuse("a token id is outside the teacher's vocabulary of " + std::to_string(vocab_rows) +
               " rows; student and teacher tokenizers differ",
           request);
  if (request.positions.numel() > 0 && (request.positions.min().item<int64_t>() < 0 ||
                                        request.positions.max().item<int64_t>() >= tokens))
    refuse("a position lies outside the pack", request);
  check_named(request, payload_vocab(request.spec, vocab_rows));
  return packed;
}

at::Tensor targets_of(const ForwardRequest& request) {
  const at::Tensor next = request.positions.to(at::kLong) + 1;
  const at::Tensor ends = request.cu_seqlens.to(at::kLong);
  if (next.numel() > 0 && (next.max().item<int64_t>() >= request.input_ids.numel() ||
                           at::isin(next, ends).any().item<bool>()))
    refuse("a position is the last of its sequence; no token follows it", request);
  return request.input_ids.to(at::kLong).index_select(0, next);
}

void check_request(const ForwardRequest& request, int64_t vocab_rows) {
  unpack_request(request, vocab_rows);
  if (request.spec.kind == PayloadKind::kTargetLogProbs)
    check_targets(targets_of(request), request.positions.numel(),
                  payload_vocab(request.spec, vocab_rows));
}

MergedPacks merge_packs(const std::vector<ForwardRequest>& requests, int64_t vocab_rows) {
  MergedPacks merged;
  if (requests.size() == 1) {
    merged.tokens = unpack_request(requests[0], vocab_rows);
    merged.rows = {requests[0].positions.to(at::kLong)};
    return merged;
  }

  std::vector<at::Tensor> ids;
  std::vector<at::Tensor> positions;
  merged.tokens.cu_seqlens = {0};
  int64_t offset = 0;
  for (const ForwardRequest& request : requests) {
    const models::PackedTokens pack = unpack_request(request, vocab_rows);
    ids.push_back(pack.input_ids);
    positions.push_back(pack.positions);

    // A request's positions are rows of its pack, which move with it; a pack's count from 0 in each
    // sequence, which stays so.
    merged.rows.push_back(request.positions.to(at::kLong) + offset);
    for (size_t s = 1; s < pack.cu_seqlens.size(); ++s)
      merged.tokens.cu_seqlens.push_back(offset + pack.cu_seqlens[s]);
    offset += pack.num_tokens();
  }
  merged.tokens.input_ids = at::cat(ids);
  merged.tokens.positions = at::cat(positions);
  return merged;
}

}  // namespace retort::roles

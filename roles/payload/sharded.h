// Forming a payload where several ranks hold the rows of the head.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "parallel/vocab_shard.h"
#include "roles/payload/payload.h"

namespace retort::roles {

// make_payload of all kinds but hidden states by the ranks of vocab.group, each with its rows of
// the head [rows, Ht]: the same numbers on every rank (full: this rank's columns), within rounding
// those of one rank. Collectives: for each chunk of rows one all-gather of [chunk, 3] floats, topk
// [chunk, 3 + 2 k] (and k more for ids that the student names) and one of [chunk], sampled those of
// draw_rows besides; every rank calls with the same hidden_rows, spec and targets. The gathers move
// host memory; the payload's tensors are made with `floats` (payload_options).
Payload make_sharded_payload(const at::Tensor& hidden_rows, const at::Tensor& weight,
                             const PayloadSpec& spec, const at::Tensor& targets,
                             const parallel::VocabShard& vocab, double softcap,
                             const at::TensorOptions& floats);

// The log-probability of what cannot be.
inline constexpr float kNegInf = -std::numeric_limits<float>::infinity();

// The options of float32 tensors of a payload that is computed on one device and goes to another,
// or the host.
at::TensorOptions payload_options(at::Device computed_on, at::Device destination);
// Ids that a row of topk or sampled names, of `vocab` ids (union: at most); 0 for other kinds.
inline int64_t ids_per_row(const PayloadSpec& spec, int64_t vocab) {
  if (spec.kind == PayloadKind::kTopK)
    return std::min(spec.top_k * (spec.support == Support::kUnion ? 2 : 1), vocab);
  if (spec.kind != PayloadKind::kSampled) return 0;
  return spec.replacement ? spec.num_samples : std::min(spec.num_samples, vocab);
}
// Any kind but hidden_states: tensors of its shapes in the types of the wire, to be filled;
// log_tail is of no tail. `k`: ids_per_row; `columns`: of full. `floats`: payload_options.
Payload unfilled_payload(const PayloadSpec& spec, int64_t rows, int64_t k, int64_t columns,
                         const at::TensorOptions& floats);
// kInvalidArgument for a target outside [0, vocab).
void check_targets(const at::Tensor& targets, int64_t rows, int64_t vocab);
// The checked targets, there; undefined for a kind that needs none.
at::Tensor targets_on(at::Device device, const PayloadSpec& spec, const at::Tensor& targets,
                      int64_t rows, int64_t vocab);
// Columns of `full` and ids of topk: those that both tokenizers know.
inline int64_t payload_vocab(const PayloadSpec& spec, int64_t vocab_rows) {
  return spec.common_vocab > 0 ? std::min(spec.common_vocab, vocab_rows) : vocab_rows;
}

}  // namespace retort::roles

// The ids of a top-k payload when they are not the teacher's alone: those that the student names,
// and the union of both sides'.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "roles/payload/payload.h"

namespace retort::roles {

// Ids of rows, and a number at each.
struct SupportRows {
  at::Tensor ids;     // [n, k] int64; -1: none
  at::Tensor values;  // [n, k] float32; -inf where there is none
};

// The student's ids, [rows, k] int64 there; undefined for a spec that names none. kInvalidArgument
// for other shapes, and for ids outside [0, vocab) or twice in a row.
at::Tensor named_on(at::Device device, const PayloadSpec& spec, const at::Tensor& named,
                    int64_t rows, int64_t vocab);
// Each id of either once, those of `first` first, `width` in a row; what is too short ends with -1.
// No id stands twice in either, and no row of the union has more than `width`.
SupportRows union_of(const SupportRows& first, const SupportRows& second, int64_t width);
// The `width` ids that a row of the payload has and their logits. `logits` [n, V] of the common
// vocabulary; `named`: these rows' student ids, if the spec has any.
SupportRows support_of(const at::Tensor& logits, const PayloadSpec& spec, const at::Tensor& named,
                       int64_t width);
// The ids to index with: in the places where a row has none its first one.
at::Tensor stand_ins(const at::Tensor& ids);
// kCorrupt when ids of a union lie outside the vocabulary, padding is not at the end of its row, or
// carries mass.
void check_union(const Payload& payload, int64_t vocab_size);

}  // namespace retort::roles

// How the answer to one request is cut when the ranks of a student's tensor-parallel group ask for
// it together, one part each.
//
// Rows of hidden states, top-k, draws and target log-probabilities: each part has its row_part; the
// parts are pulled from different ranks of the teacher and gathered by the group. Columns of
// `full`: those that the request names, which are the asking rank's own shard of the vocabulary,
// and come from whichever ranks of the teacher have them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "parallel/group.h"
#include "roles/payload/payload.h"
#include "roles/payload/row_part.h"
#include "roles/teacher/methods.h"

namespace retort::roles {

Range intersect(Range a, Range b);  // empty: begin = end
// The ids that rank `rank` of `ranks` has of a vocabulary of `total`: parallel::VocabShard.
Range shard_of(int64_t total, int64_t ranks, int64_t rank);
// The rows of a teacher's head that rank `rank` of the student's `ranks` compares with: those of
// its own shard, on the last rank that has rows also those above the student's vocabulary.
Range head_rows(int64_t student_vocab_rows, int64_t teacher_vocab_rows, int64_t ranks,
                int64_t rank);

// Says which rank of a teacher's tensor-parallel group has what. Both ends compute it.
struct PieceMap {
  int64_t vocab_rows = 0;  // of the teacher's head
  int64_t ranks = 1;       // of its tensor-parallel group

  // For kFull: the columns of a part, and those of them that a rank has.
  Range columns_of(const ForwardRequest& request, int64_t part) const;
  Range columns_of(const ForwardRequest& request, int64_t part, int64_t rank) const;
  // True if `rank` answers for a part: for kFull if it has columns of it, else rank part mod ranks.
  bool has(const ForwardRequest& request, int64_t part, int64_t rank) const;
};

// Returns what `rank` has of `part`. `whole`: make_payload of that rank, every row. The tensors may
// share its memory.
Payload cut_piece(const Payload& whole, const ForwardRequest& request, int64_t part,
                  const PieceMap& map, int64_t rank);
// The pieces of one part, in the order of the ranks that had them.
Payload join_pieces(std::vector<Payload> pieces);
// Returns what the group's ranks got as one answer: every row (kFull: this rank's columns). `part`:
// joined; its label says which. An all-gather for each tensor (not kFull) and, with masked ids and
// for kTopK at another temperature than 1, an all-reduce each on `tp`; every rank calls.
Payload gather_parts(Payload part, parallel::Group& tp);

}  // namespace retort::roles

// The teacher's side of ULD and GOLD: one class per payload, each giving the distributions of the
// groups' last rows and the log-probabilities of the tokens before them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "recipes/losses/detail/group_rows.h"
#include "recipes/losses/detail/vocab_group.h"
#include "recipes/losses/teacher_signal.h"

namespace retort::losses::detail {

class UldTeacher {
 public:
  struct Chunk {
    at::Tensor probabilities;  // [n, ids] float32; of top-k [n, K], the largest first
    at::Tensor rest;           // top-k: [n] float32, the mass outside the K; else undefined
  };
  virtual ~UldTeacher() = default;
  // The last rows of groups [begin, begin + count). With a split vocabulary every rank must call:
  // one all-gather for a dense payload.
  virtual Chunk chunk(int64_t begin, int64_t count) = 0;
  // [E] float32: log p of the token of each earlier row. `rows_at_once`: rows formed at once;
  // every rank must call, one all-gather for each such chunk of a dense payload.
  virtual at::Tensor earlier_log_probs(int64_t rows_at_once) = 0;
  // The floats that a row needs beside the student's logits: the same number on every rank.
  virtual int64_t floats_per_row() const = 0;
  // After all of these: [Rt] int32 RowStatus of the teacher's rows, the same on all ranks. Rows
  // that were not read are kOk.
  virtual at::Tensor status() const = 0;
};

// What a teacher is made of, on the device of the logits.
struct UldTeacherInputs {
  TeacherSignal signal;  // no TeacherSampled
  at::Tensor targets;    // [Rt] int64
  SideRows rows;
  int64_t ids = 0;         // how many of its ids take part
  double temperature = 1;  // of hidden states; the other payloads have theirs already
};

// `vocab`: the teacher's own, of which this rank has its part (not read for top-k).
std::unique_ptr<UldTeacher> make_uld_teacher(const UldTeacherInputs& inputs,
                                             const VocabGroup& vocab);

}  // namespace retort::losses::detail

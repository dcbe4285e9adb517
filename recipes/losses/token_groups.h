// Rows of two tokenizers that stand for the same text: what losses across vocabularies compare.
#pragma once

#include <cstdint>

namespace retort::losses {

// Rows of student and teacher that stand for the same bytes of text. A row is the position that
// predicts a token; those of a group follow one another, and no two groups share one.
struct TokenGroup {
  int64_t student_begin = 0, student_end = 0;  // rows of the student, at least one
  int64_t teacher_begin = 0, teacher_end = 0;  // rows of the teacher, likewise
  double weight = 1;                           // of its distance in the loss
};

}  // namespace retort::losses

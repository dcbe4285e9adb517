// Where student and teacher have different tokenizers: which tokens of both stand for the same
// bytes of what was said.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "models/text/token_bytes.h"

namespace retort::recipes {

// Tokens of both sides that stand for the same bytes: positions in each side's own sequence.
struct ByteGroup {
  int64_t student_begin = 0, student_end = 0;  // at least one token on each side
  int64_t teacher_begin = 0, teacher_end = 0;
  bool ends_turn = false;  // the special tokens by which each side ends what was said (<|im_end|>)

  bool operator==(const ByteGroup&) const = default;
};

// One side of a row: its tokens, and which of them the loss counts. A run of ones is what was said.
struct SideTokens {
  std::span<const int32_t> ids;
  std::span<const uint8_t> is_target;  // as many
  const models::TokenBytes& bytes;
};

// The smallest groups that there are: in each run both sides are cut where as many bytes of what
// was said lie behind them. The i-th run of one side belongs to the i-th of the other. What is in
// no group has no counterpart. In order; linear in the bytes. Any thread.
//
// What was said ends before the special token of the run behind which nothing but white space
// follows (of several side by side, before the first), else with the run. If both sides have such a
// token, these two are a last group of the run, with ends_turn; what follows it (ChatML's "\n") is
// in no group. Special tokens before it stand for their content.
//
// Bytes of what was said must be the same, but for four things that tokenizers and templates do:
// - (a) One space at the beginning that only one side has, as sentencepiece puts one before a text:
//   it does not count, so the side's first token is one byte shorter. One that is nothing else
//   belongs to the next group.
// - (b) More at the beginning of one side, as a template puts an empty "<think>\n\n</think>\n\n"
//   before the answer: where the longer side ends with all of the shorter one, what it has before
//   that is in no group, nor are the tokens up to the first cut of both where the shorter side
//   begins in the midst of a token.
// - (c) White space at the end that only one side has, as templates trim messages: it is in no
//   group, nor is a token that holds it and more.
// - (d) The other side's sign for the end of a turn, spelled out: who reads the other one's chat
//   template has no such token. It is in no group.
// Bytes from the first on that is no UTF-8 are in no group either: a completion may be cut within a
// character.
// Tokens without bytes belong to the group of the next token, at the end to the last group.
//
// student_is_cut: the student's row is a beginning (data.max_length), so it may have fewer runs,
// and its last run may be a beginning: what the teacher has beyond that is in no group, nor are
// tokens behind the last cut of both. (b) then holds where 16 bytes of both agree; a shorter rest
// of an answer is in no group.
//
// kInvalidArgument that begins with `origin`, the row's file and line, for another number of runs
// and for other bytes, with the place in the answer.
std::vector<ByteGroup> byte_groups(const SideTokens& student, const SideTokens& teacher,
                                   const std::string& origin, bool student_is_cut);

}  // namespace retort::recipes

// The log-probabilities of given tokens that a score wants, taken as they are read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engines/contract/engine.h"

namespace retort::engines::sglang {

// [log-probability, id, text]: an element of SGLang's lists. nullopt: null.
struct Entry {
  std::optional<double> log_prob;
  int32_t id = 0;
};

// The most probable ids of all rows in one piece (return_flat_raw_top_logprobs_b64).
struct FlatTop {
  std::vector<uint8_t> values, ids;  // little-endian
  std::string value_type, id_type;
  std::vector<int64_t> shape;  // [rows, K], without those of the prefix
  int64_t null_prefix = -1;    // rows before them that have nothing; -1: not said
};

// SGLang lists every token from logprob_start_len on, which is the first position: that one itself
// without a log-probability, then each token under the distribution before it. The most probable
// ids come with null for the first one too, either row by row or flat.
//
// Errors: kMismatch for rows of another sequence, kCorrupt for numbers that cannot be; both name
//   the row. Rows that nobody wants may have any numbers.
// Memory: [R, K] ids and log-probabilities, and one row.
class InputRows {
 public:
  // Takes requests that score_question() accepts. The server writes 0 for ids from vocab_rows - 1
  // on.
  InputRows(ScoreRequest request, int64_t vocab_rows);

  // input_token_logprobs
  void given(const Entry& entry);
  // input_top_logprobs
  void null_top();
  void begin_top();
  void top(const Entry& entry);
  void end_top();

  // All rows were there; `flat`: where they came in one piece. Once.
  Scored take(std::optional<FlatTop> flat);

 private:
  bool wanted(int64_t row) const;
  void keep_top(const std::vector<Entry>& entries);
  void read_flat(const FlatTop& flat);
  void check_consistent() const;
  std::string place(const char* list, int64_t row) const;

  const ScoreRequest request_;
  const int64_t vocab_rows_;
  const int64_t first_;     // the token of row 0
  const int64_t num_rows_;  // with that
  int64_t given_row_ = 0;   // the next one
  int64_t top_row_ = 0;     // the next one, or the one being read
  size_t next_top_ = 0;
  std::vector<Entry> entries_;
  std::vector<int32_t> sorted_ids_;
  Scored scored_;
};

}  // namespace retort::engines::sglang

// The rows of `prompt_logprobs` that a score wants, taken as they are read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engines/contract/engine.h"

namespace retort::engines::vllm {

// vLLM's list has an entry for each token of the prompt: null for the first; then, of token i,
// {"ID": {"logprob", "rank", "decoded_token"}, ...} under the distribution after token i - 1: the
// top_k most probable with ranks 1, 2, ... and token i itself, so top_k or top_k + 1 of them. Their
// order says nothing; token i is found by its id. Its rank, where it is not among the top_k, counts
// every token at least as probable.
//
// Errors: kMismatch for rows of another prompt, kCorrupt for numbers that cannot be; both name the
//   position.
// Memory: [R, K] ids and log-probabilities, and one row.
class PromptRows {
 public:
  // positions and top_k as score_question() accepts them
  explicit PromptRows(ScoreRequest request);

  void null_row();
  void begin_row();
  void begin_entry(std::string_view id);
  void log_prob(double value);
  void rank(double value);
  void end_entry();
  void end_row();

  // All rows were there. Once.
  Scored take();

 private:
  struct Entry {
    int32_t id = 0;
    float log_prob = 0;
    int64_t rank = 0;  // 0: not said
    bool has_log_prob = false;
  };

  bool wanted() const;
  void keep_top(const Entry& given);
  std::string place(const std::string& what) const;  // "prompt_logprobs[7]: what"
  [[noreturn]] void corrupt(const std::string& what) const;
  [[noreturn]] void mismatch(const std::string& what) const;

  ScoreRequest request_;
  int64_t num_tokens_ = 0;  // that were sent
  int64_t row_ = 0;         // the next one, or the one being read
  size_t next_ = 0;         // the next of the positions
  std::vector<Entry> entries_;
  std::vector<int32_t> sorted_ids_;
  std::vector<int32_t> top_ids_;      // of a row, -1: free
  std::vector<float> top_log_probs_;  // of a row
  Scored scored_;
};

}  // namespace retort::engines::vllm

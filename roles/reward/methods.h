// The typed remote methods of a role that scores completions, or says what it thinks of them. Who
// it is: teacher.info, as of every frozen role.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rpc/method.h"

namespace retort::roles {

// S sequences, each a prompt and its completion, laid end to end.
struct RewardQuestion {
  uint64_t request_id = 0;
  int64_t label = 0;                   // which of the model's numbers
  std::vector<int32_t> input_ids;      // [N]
  std::vector<int32_t> cu_seqlens;     // [S+1]: from 0 to N
  std::vector<int32_t> prompt_tokens;  // [S]: of each sequence, the rest is its completion

  size_t num_sequences() const { return prompt_tokens.size(); }
  template <class A>
  void serialize(A& archive) {
    archive(request_id, label, input_ids, cu_seqlens, prompt_tokens);
  }
};

struct RewardAnswer {
  uint64_t request_id = 0;     // the question's
  std::vector<double> scores;  // [S], finite
  template <class A>
  void serialize(A& archive) {
    archive(request_id, scores);
  }
};

// Texts, each a question of its own to a model that talks.
struct JudgeQuestion {
  uint64_t request_id = 0;
  int64_t max_new_tokens = 0;  // of each answer
  std::vector<std::string> texts;
  template <class A>
  void serialize(A& archive) {
    archive(request_id, max_new_tokens, texts);
  }
};

struct JudgeAnswer {
  uint64_t request_id = 0;  // the question's
  std::vector<std::string> texts;
  std::vector<uint8_t> cut;  // 1: the answer did not end by itself
  template <class A>
  void serialize(A& archive) {
    archive(request_id, texts, cut);
  }
};

inline constexpr rpc::Method<JudgeQuestion, JudgeAnswer> kJudgeAnswer{"judge.answer", true};
inline constexpr rpc::Method<RewardQuestion, RewardAnswer> kRewardScore{"reward.score", true};

}  // namespace retort::roles

// Makes the questions for SGLang's /generate: the body of a draw and of a score.
#pragma once

#include <cstdint>
#include <string>

#include "engines/contract/engine.h"

namespace retort::engines::sglang {

// One sequence for the server, and how much it may answer.
struct Question {
  std::string body;         // JSON
  uint64_t body_bytes = 0;  // the largest answer that is one
};

// The names that the server is to give a request.
struct RequestName {
  std::string rid;         // what aborts it
  std::string cache_salt;  // requests with the same one share the prefix cache; empty: none
};

// What a request leaves out SGLang takes from its --preferred-sampling-params, so every sampling
// parameter is given, those that are not used as null.
//   vocab_rows  ids that the model knows. Those from sampling.num_ids on get the logit bias -100,
//               which leaves them no probability, where they are at most 1024; of more than those,
//               a draw of one is an error of its answer. The bias changes log-probabilities: they
//               are those of the distribution that is drawn from.
// kInvalidArgument for what SGLang does otherwise than we do, naming the field:
//   0 < temperature < 1e-6     it draws greedily
//   repetition_penalty         it counts what it drew, we the prompt too
//   typical_p, and min_new_tokens with stop texts (draw_support.h)
//   top_k together with top_p  it applies both to the whole distribution, we top_p to what top_k
//                              leaves
Question draw_question(const DrawRequest& request, const RequestName& name, int64_t vocab_rows);

// The tokens that decide about the last position are sent, and log-probabilities asked for from the
// first position on, so that the prefix before it may come from the server's cache. Nothing is
// drawn. kInvalidArgument as check_score(), and for a top_k above vocab_rows, which would end the
// server.
Question score_question(const ScoreRequest& request, const RequestName& name, int64_t vocab_rows);

// A request that is refused with the number of ids that the model knows.
std::string vocabulary_question(const std::string& rid);

}  // namespace retort::engines::sglang

// Makes the questions for vLLM: the bodies of a draw and of a score for /v1/completions, and those
// about named ids for /inference/v1/generate.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engines/contract/engine.h"

namespace retort::engines::vllm {

// One sequence for the server, and how much it may answer.
struct Question {
  std::string body;         // JSON
  uint64_t body_bytes = 0;  // the largest answer that is one
};

// Sampling parameters that are given are the server's whole choice: what a request leaves out it
// takes from the model's generation_config.json, so every one is given.
//   request_id  the server's name for the request, in its log too
//   vocab_rows  ids that the model knows; 0: unknown. Those from sampling.num_ids on get the logit
//               bias -100, which no probability survives, where they are at most 1024; more than
//               those vLLM does not take, and a draw of one is an error of its answer.
// kInvalidArgument for what vLLM does otherwise than we do, naming the field:
//   0 < temperature < 0.01     it draws at 0.01
//   min_p together with top_p  it applies min_p first, we last
//   typical_p                  it does not know it (draw_support.h)
//   a seed of 2^64 - 1         it draws without a seed
Question draw_question(const DrawRequest& request, const std::string& model,
                       const std::string& request_id, int64_t vocab_rows);

// The tokens that decide about the last position are sent, no more. kInvalidArgument for positions
// that are none (ScoreRequest), or a top_k below 0.
Question score_question(const ScoreRequest& request, const std::string& model,
                        const std::string& request_id);

// The named ids of each row from the first wanted position to the last, `ids` [R, N] int32 of the
// wanted ones. Rows between them that nobody wants get those before them: so every row has N, and
// none is padded. kInvalidArgument as score_question, and for ids of another shape.
Question named_question(const ScoreRequest& request, const at::Tensor& ids,
                        const std::string& model, const std::string& request_id);

// Asks for log-probabilities of `count` tokens at each position of a prompt of one token, for the
// refusal that says how many the server allows. count -1: of all ids.
std::string limit_question(const std::string& model, int64_t count);

}  // namespace retort::engines::vllm

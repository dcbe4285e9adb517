// Rows of a served model's head that are no ids of the tokenizer, and must not be drawn.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace retort::engines {

// More biases than that make a request too large; such ids are left to the model, which was never
// taught to draw them.
inline constexpr int64_t kMaxBiases = 1024;

// {"ID": -100.0, ...} of the ids from `num_ids` on: how vLLM and SGLang bar single ids. Empty where
// there are none, or more than kMaxBiases.
inline nlohmann::json padding_bias(int64_t num_ids, int64_t vocab_rows) {
  nlohmann::json bias = nlohmann::json::object();
  if (num_ids <= 0 || vocab_rows - num_ids > kMaxBiases) return bias;
  for (int64_t id = num_ids; id < vocab_rows; ++id)
    bias[std::to_string(id)] = -100.0;
  return bias;
}

}  // namespace retort::engines

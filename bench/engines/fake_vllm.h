// Answers in the form of vLLM's, of any size.
#pragma once

#include <cstdint>

namespace retort::bench {

// Serves scores as vLLM 0.32.0 was recorded to (tests/engines/recorded), until stdin is closed;
// says its address on stdout. Log-probabilities are made up, with as many digits as floats have
// there; texts of tokens have four characters.
int run_fake_vllm(int64_t vocab_rows);

}  // namespace retort::bench

// What tests of recorded servers share: how long they wait, and the folder of a small model.
#pragma once

#include <chrono>

#include "base/deadline.h"

namespace retort::test {

// Bounds a hang; no test gets that far.
inline Deadline soon() { return Deadline::after(std::chrono::seconds(120)); }

inline constexpr const char* kSmallConfig = R"({"architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3", "vocab_size": 8, "hidden_size": 4, "intermediate_size": 4,
    "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
    "head_dim": 4, "hidden_act": "silu", "max_position_embeddings": 16,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": true})";

}  // namespace retort::test

// Ways in which an engine's numbers are not what they seem, made of a real server's.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tests/engines/llamacpp/rewriting_proxy.h"

namespace retort::engines::test {

// The server's id of ours is `ids[ours]`: of prompts, forced tokens and answers.
Proxying renumbered(std::vector<int32_t> ids);
// id -> id + 1, the last one -> 0
Proxying one_id_off(int64_t vocab_rows);
// All ids but the 256 bytes' and special tokens' in another order, as of another training.
Proxying another_tokenizer(int64_t vocab_rows);

// Log-probabilities of a position by id, over the whole vocabulary, as the server gives them and as
// the adapter gets them. The least float32 stands for no chance at all.
using Distribution = std::function<std::vector<double>(std::vector<double>)>;
Proxying redistributed(int64_t vocab_rows, Distribution change);

// l / T, over the whole vocabulary and with a sum of 1.
Distribution tempered(double temperature);
// Ids outside the smallest set with mass `top_p` have no chance; the others keep what they have, or
// share all of it.
Distribution truncated(double top_p, bool renormalized);

// The first answer to each prompt is given ever after.
Proxying stale_cache();

// Changes each number of an answer: log-probabilities of drawn tokens and of the most probable.
void each_log_prob(nlohmann::json& answer, const std::function<void(nlohmann::json&)>& change);

}  // namespace retort::engines::test

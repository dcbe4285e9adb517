// A prompt and what was said after it, as one sample whose targets are the completion's tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "recipes/data/sample.h"

namespace retort::data {

// `is_target`: of each token of the completion; empty: all are.
Sample completion_sample(const std::vector<int32_t>& prompt, const std::vector<int32_t>& completion,
                         const std::vector<uint8_t>& is_target = {});
// With the prompt's origin and fields.
Sample completion_sample(const PromptSample& prompt, const std::vector<int32_t>& completion);
// The same where an episode has a prompt of its own.
Sample completion_sample(const PromptSample& prompt, const std::vector<int32_t>& prompt_ids,
                         const std::vector<int32_t>& completion,
                         const std::vector<uint8_t>& is_target);

}  // namespace retort::data

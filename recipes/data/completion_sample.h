// A prompt and what was said after it, as one sample whose targets are the completion's tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "recipes/data/sample.h"

namespace retort::data {

Sample completion_sample(const std::vector<int32_t>& prompt,
                         const std::vector<int32_t>& completion);
// With the prompt's origin and fields.
Sample completion_sample(const PromptSample& prompt, const std::vector<int32_t>& completion);

}  // namespace retort::data

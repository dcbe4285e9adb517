#include "recipes/data/completion_sample.h"

namespace retort::data {

Sample completion_sample(const std::vector<int32_t>& prompt,
                         const std::vector<int32_t>& completion) {
  Sample sample{.input_ids = prompt, .is_target = std::vector<uint8_t>(prompt.size(), 0)};
  sample.input_ids.insert(sample.input_ids.end(), completion.begin(), completion.end());
  sample.is_target.resize(sample.input_ids.size(), 1);
  return sample;
}

Sample completion_sample(const PromptSample& prompt, const std::vector<int32_t>& completion) {
  Sample sample = completion_sample(prompt.prompt_ids, completion);
  sample.origin = prompt.origin;
  sample.fields = prompt.fields;
  return sample;
}

}  // namespace retort::data

#include "recipes/data/completion_sample.h"

#include "base/error.h"

namespace retort::data {

Sample completion_sample(const std::vector<int32_t>& prompt, const std::vector<int32_t>& completion,
                         const std::vector<uint8_t>& is_target) {
  RETORT_CHECK(is_target.empty() || is_target.size() == completion.size())
      << "a mask of other tokens";
  Sample sample{.input_ids = prompt, .is_target = std::vector<uint8_t>(prompt.size(), 0)};
  sample.input_ids.insert(sample.input_ids.end(), completion.begin(), completion.end());
  sample.is_target.insert(sample.is_target.end(), is_target.begin(), is_target.end());
  sample.is_target.resize(sample.input_ids.size(), 1);
  return sample;
}

Sample completion_sample(const PromptSample& prompt, const std::vector<int32_t>& completion) {
  return completion_sample(prompt, prompt.prompt_ids, completion, /*is_target=*/{});
}

Sample completion_sample(const PromptSample& prompt, const std::vector<int32_t>& prompt_ids,
                         const std::vector<int32_t>& completion,
                         const std::vector<uint8_t>& is_target) {
  Sample sample = completion_sample(prompt_ids, completion, is_target);
  sample.origin = prompt.origin;
  sample.fields = prompt.fields;
  return sample;
}

}  // namespace retort::data

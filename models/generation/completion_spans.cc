#include "models/generation/completion_spans.h"

#include <algorithm>

#include "base/error.h"
#include "base/sizes.h"

namespace retort::models {

std::vector<uint8_t> model_tokens(const Completion& completion) {
  if (completion.spans.empty()) return std::vector<uint8_t>(completion.token_ids.size(), 1);
  std::vector<uint8_t> mask;
  mask.reserve(completion.token_ids.size());
  for (const Span& span : completion.spans)
    mask.insert(mask.end(), static_cast<size_t>(span.tokens), span.source == SpanSource::kModel);
  RETORT_CHECK(mask.size() == completion.token_ids.size()) << "spans of other tokens";
  return mask;
}

int64_t num_model_tokens(const Completion& completion) {
  if (completion.spans.empty()) return to_int64(completion.token_ids.size());
  int64_t tokens = 0;
  for (const Span& span : completion.spans)
    if (span.source == SpanSource::kModel) tokens += span.tokens;
  return tokens;
}

std::span<const int32_t> last_turn(const Completion& completion) {
  const std::span<const int32_t> all = completion.token_ids;
  if (completion.spans.empty()) return all;

  size_t end = all.size();
  for (auto span = completion.spans.rbegin(); span != completion.spans.rend(); ++span) {
    const auto tokens = static_cast<size_t>(span->tokens);
    RETORT_CHECK(tokens <= end) << "spans of other tokens";
    if (span->source == SpanSource::kModel) return all.subspan(end - tokens, tokens);
    end -= tokens;
  }
  return {};
}

std::vector<int32_t> take_prompt(Completion& completion) {
  if (completion.spans.empty() || completion.spans.front().source != SpanSource::kPrompt) return {};
  const int64_t tokens = completion.spans.front().tokens;
  RETORT_CHECK(tokens <= to_int64(completion.token_ids.size())) << "spans of other tokens";

  const auto take = [tokens](auto& values) {
    if (values.empty()) return;  // an engine that does not say them
    values.erase(values.begin(), values.begin() + tokens);
  };
  std::vector<int32_t> prompt(completion.token_ids.begin(), completion.token_ids.begin() + tokens);
  take(completion.token_ids);
  take(completion.logps);
  take(completion.sampling_logps);
  completion.spans.erase(completion.spans.begin());
  return prompt;
}

}  // namespace retort::models

#include "models/generate.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "models/sampling.h"

namespace retort::models {
namespace {

using Prompts = std::vector<std::vector<int32_t>>;

void check_options(const Prompts& prompts, const GenerateOptions& options) {
  auto fail = [](const char* field, const auto& value, const char* expected) {
    throw Error(ErrorCode::kInvalidArgument, std::string("generation: ") + field + " must be " + expected).with(field, value);
  };
  if (options.max_new_tokens < 1) fail("max_new_tokens", options.max_new_tokens, "at least 1");
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature))
    fail("temperature", options.temperature, "0 or positive");
  if (!(options.top_p > 0 && options.top_p <= 1)) fail("top_p", options.top_p, "above 0 and at most 1");
  if (options.top_k < 0) fail("top_k", options.top_k, "0 (off) or positive");
  if (options.max_batch < 1) fail("max_batch", options.max_batch, "at least 1");
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].empty()) fail("prompt", i, "at least one token long");
  }
}

// Sequences in flight, each in a slot of the cache; a slot whose sequence ends takes the next prompt at once.
class Batch {
 public:
  Batch(const Decoder& decoder, const Prompts& prompts, const GenerateOptions& options,
        const std::function<void(size_t, int32_t)>& on_token)
      : decoder_(decoder),
        prompts_(prompts),
        options_(options),
        on_token_(on_token),
        completions_(prompts.size()),
        slots_(std::min(prompts.size(), static_cast<size_t>(options.max_batch)), kFree),
        cache_(decoder.config(), static_cast<int64_t>(slots_.size()), longest(prompts) + options.max_new_tokens,
               decoder.head_weight().scalar_type()) {}

  std::vector<Completion> run() {
    for (;;) {
      const Prompts rows = next_rows();
      if (rows.empty()) return std::move(completions_);
      advance(pack_rows(rows));
    }
  }

 private:
  static constexpr size_t kFree = SIZE_MAX;

  static int64_t longest(const Prompts& prompts) {
    size_t length = 0;
    for (const auto& prompt : prompts) length = std::max(length, prompt.size());
    return static_cast<int64_t>(length);
  }

  // For each slot the tokens to feed: a new prompt, the last token, or nothing. Empty when all is done.
  Prompts next_rows() {
    Prompts rows(slots_.size());
    bool any = false;
    for (size_t s = 0; s < slots_.size(); ++s) {
      if (slots_[s] != kFree) {
        rows[s] = {completions_[slots_[s]].token_ids.back()};
      } else if (next_prompt_ < prompts_.size()) {
        slots_[s] = next_prompt_++;
        rows[s] = prompts_[slots_[s]];
        cache_.reset(static_cast<int64_t>(s));
      }
      any |= !rows[s].empty();
    }
    if (!any) rows.clear();
    return rows;
  }

  void advance(const PackedTokens& tokens) {
    std::vector<size_t> active;
    std::vector<int64_t> last;
    for (size_t s = 0; s < slots_.size(); ++s) {
      if (tokens.cu_seqlens[s + 1] == tokens.cu_seqlens[s]) continue;
      active.push_back(s);
      last.push_back(tokens.cu_seqlens[s + 1] - 1);
    }
    const at::Tensor states = decoder_.hidden(tokens, cache_);
    at::Tensor index = at::empty({static_cast<int64_t>(last.size())}, at::TensorOptions().dtype(at::kLong));
    std::copy(last.begin(), last.end(), index.mutable_data_ptr<int64_t>());
    const at::Tensor logits = decoder_.logits(at::index_select(states, 0, index)).contiguous();
    for (size_t i = 0; i < active.size(); ++i) {
      accept(active[i], logits.const_data_ptr<float>() + static_cast<int64_t>(i) * logits.size(1), logits.size(1));
    }
  }

  void accept(size_t slot, const float* logits, int64_t vocab_size) {
    const size_t sample = slots_[slot];
    Completion& completion = completions_[sample];
    const size_t position = prompts_[sample].size() + completion.token_ids.size();
    const Choice choice = choose_token(logits, vocab_size, options_, sample, position);
    completion.token_ids.push_back(choice.token);
    completion.logps.push_back(choice.logp);
    if (on_token_) on_token_(sample, choice.token);
    const auto& ends = options_.eos_token_ids;
    completion.finished = std::find(ends.begin(), ends.end(), choice.token) != ends.end();
    if (completion.finished || static_cast<int64_t>(completion.token_ids.size()) == options_.max_new_tokens) {
      slots_[slot] = kFree;
    }
  }

  const Decoder& decoder_;
  const Prompts& prompts_;
  const GenerateOptions& options_;
  const std::function<void(size_t, int32_t)>& on_token_;
  std::vector<Completion> completions_;
  std::vector<size_t> slots_;  // the sample in each slot of the cache
  size_t next_prompt_ = 0;
  KvCache cache_;
};

}  // namespace

std::vector<Completion> generate(const Decoder& decoder, const std::vector<std::vector<int32_t>>& prompts,
                                 const GenerateOptions& options, const std::function<void(size_t, int32_t)>& on_token) {
  check_options(prompts, options);
  if (prompts.empty()) return {};
  const c10::InferenceMode inference;
  return Batch(decoder, prompts, options, on_token).run();
}

}  // namespace retort::models

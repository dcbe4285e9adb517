#include "models/generation/generate.h"

#include <algorithm>

#include "models/generation/engine.h"

namespace retort::models {

std::vector<Completion> generate(const Decoder& decoder,
                                 const std::vector<std::vector<int32_t>>& prompts,
                                 const GenerateOptions& options,
                                 const std::function<void(size_t, int32_t)>& on_token) {
  if (prompts.empty()) return {};

  // The cache has room for every sequence of a batch at its full length, so that none gives up its
  // blocks.
  int64_t longest = 0;
  for (const auto& prompt : prompts)
    longest = std::max(longest, static_cast<int64_t>(prompt.size()));
  EngineOptions engine_options;
  engine_options.max_sequences = options.max_batch;
  engine_options.max_tokens_per_step =
      std::max<int64_t>(engine_options.max_tokens_per_step, options.max_batch);
  engine_options.validate();
  const int64_t block = engine_options.block_tokens;
  const int64_t tokens = longest + std::max<int64_t>(0, options.draw.max_new_tokens);
  const int64_t sequences = std::min(options.max_batch, static_cast<int64_t>(prompts.size()));
  engine_options.num_blocks = sequences * ((tokens + block - 1) / block);

  // One request for all prompts, so that sample ids are 0, 1, ...
  GenerationCallbacks callbacks;
  if (on_token)
    callbacks.on_token = [&](size_t sample, int32_t token, float) { on_token(sample, token); };
  return Engine(decoder, engine_options)
      .run({.prompts = prompts, .draw = options.draw}, std::move(callbacks));
}

}  // namespace retort::models

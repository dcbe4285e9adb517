// retort generate: batch generation from a file of prompts.
#include <chrono>
#include <cstdio>

#include "base/error.h"
#include "base/file.h"
#include "base/json_text.h"
#include "launch/commands/commands.h"
#include "launch/commands/loaded_model.h"
#include "models/generate.h"
#include "recipes/data/jsonl.h"
#include "recipes/data/sample.h"

namespace retort::launch {
namespace {

std::string nested_array(const std::vector<models::Completion>& completions, size_t first, size_t count,
                         const std::function<std::string(const models::Completion&)>& format) {
  std::string text = "[";
  for (size_t i = 0; i < count; ++i) text += (i ? ", " : "") + format(completions[first + i]);
  return text + "]";
}

template <class Values, class Format>
std::string flat_array(const Values& values, Format format) {
  std::string text = "[";
  for (size_t i = 0; i < values.size(); ++i) text += (i ? ", " : "") + format(values[i]);
  return text + "]";
}

void validate(const GenerateCommand& command) {
  const auto refuse = [](const std::string& what) { throw Error(ErrorCode::kInvalidArgument, what); };
  if (command.max_new_tokens <= 0) refuse("--max-new-tokens must be > 0");
  if (command.num_generations <= 0) refuse("--num-generations must be > 0");
  if (command.batch_size <= 0) refuse("--batch-size must be > 0");
  if (command.temperature < 0) refuse("--temperature must be >= 0 (0: greedy)");
  if (command.top_p <= 0 || command.top_p > 1) refuse("--top-p must be in (0, 1]");
  if (command.temperature == 0 && command.num_generations > 1)
    refuse("--num-generations > 1 with --temperature 0 would repeat one greedy completion; set a temperature");
}

}  // namespace

int run_generate(const GenerateCommand& command) {
  validate(command);
  const LoadedModel model = load_model(command.model, command.dtype);
  const data::JsonlFile file(command.prompts);
  const data::Source source{.path = command.prompts, .columns = command.columns};
  std::vector<data::PromptSample> prompts;
  std::vector<std::vector<int32_t>> inputs;
  for (int64_t i = 0; i < file.size(); ++i) {
    const std::string origin = command.prompts + ":" + std::to_string(file.line_number(i));
    prompts.push_back(data::make_prompt(file.line(i), origin, source, model.tokenizer, model.chat));
    for (int64_t g = 0; g < command.num_generations; ++g) inputs.push_back(prompts.back().prompt_ids);
  }
  if (prompts.empty()) throw Error(ErrorCode::kInvalidArgument, command.prompts + " has no prompts");
  const models::GenerateOptions options{.max_new_tokens = command.max_new_tokens,
                                        .temperature = command.temperature,
                                        .top_p = command.top_p,
                                        .top_k = command.top_k,
                                        .seed = command.seed,
                                        .eos_token_ids = model.eos_token_ids,
                                        .max_batch = command.batch_size};
  const auto start = std::chrono::steady_clock::now();
  const auto completions = models::generate(model.decoder, inputs, options);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  AtomicFile output(command.output);
  const auto per_prompt = static_cast<size_t>(command.num_generations);
  int64_t new_tokens = 0;
  for (const auto& completion : completions) new_tokens += static_cast<int64_t>(completion.token_ids.size());
  for (size_t p = 0; p < prompts.size(); ++p) {
    const size_t first = p * per_prompt;
    JsonLine line;
    line.add("prompt", std::string_view(prompts[p].prompt_text));
    line.raw("completions", nested_array(completions, first, per_prompt, [&](const auto& c) {
               return json_quote(model.tokenizer.decode(c.token_ids, /*skip_special_tokens=*/true));
             }));
    line.raw("token_ids", nested_array(completions, first, per_prompt, [](const auto& c) {
               return flat_array(c.token_ids, [](int32_t id) { return std::to_string(id); });
             }));
    line.raw("logps", nested_array(completions, first, per_prompt, [](const auto& c) {
               return flat_array(c.logps, [](float value) { return json_number(value); });
             }));
    if (!prompts[p].reference.empty()) line.add("reference", std::string_view(prompts[p].reference));
    output.write(line.str() + "\n");
  }
  output.commit();
  std::printf("%s\n", JsonLine()
                          .add("num_prompts", static_cast<int64_t>(prompts.size()))
                          .add("new_tokens", new_tokens)
                          .add("new_tokens_per_second", static_cast<double>(new_tokens) / seconds)
                          .add("seconds", seconds)
                          .str()
                          .c_str());
  return 0;
}

}  // namespace retort::launch

// retort generate: batch generation from a file of prompts.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <span>

#include "base/error.h"
#include "base/file.h"
#include "base/json_text.h"
#include "launch/commands/commands.h"
#include "models/generation/engine.h"
#include "models/generation/stop_text.h"
#include "models/loaded_model.h"
#include "recipes/data/jsonl.h"
#include "recipes/data/sample.h"

namespace retort::launch {
namespace {

void validate(const GenerateCommand& command) {
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, what);
  };
  const models::SamplingOptions& sampling = command.sampling;
  if (command.max_new_tokens <= 0) refuse("--max-new-tokens must be > 0");
  if (command.min_new_tokens < 0) refuse("--min-new-tokens must be >= 0 (0: off)");
  if (command.max_new_tokens_column.empty() && command.min_new_tokens >= command.max_new_tokens)
    refuse("--min-new-tokens must be below --max-new-tokens, at which every completion is cut off");
  if (command.min_new_tokens > 0 && command.ignore_eos && command.stop.empty())
    refuse("--min-new-tokens has no effect with --ignore-eos and without --stop");
  if (command.num_generations <= 0) refuse("--num-generations must be > 0");
  if (command.batch_size <= 0) refuse("--batch-size must be > 0");
  if (sampling.temperature < 0) refuse("--temperature must be >= 0 (0: greedy)");
  if (sampling.top_p <= 0 || sampling.top_p > 1) refuse("--top-p must be in (0, 1]");
  if (sampling.min_p < 0 || sampling.min_p > 1) refuse("--min-p must be in [0, 1]");
  if (sampling.typical_p <= 0 || sampling.typical_p > 1) refuse("--typical-p must be in (0, 1]");
  if (std::abs(sampling.presence_penalty) > 2) refuse("--presence-penalty must be in [-2, 2]");
  if (std::abs(sampling.frequency_penalty) > 2) refuse("--frequency-penalty must be in [-2, 2]");
  if (sampling.repetition_penalty <= 0) refuse("--repetition-penalty must be > 0 (1: off)");
  if (sampling.temperature == 0 && command.num_generations > 1)
    refuse(
        "--num-generations > 1 with --temperature 0 would repeat one greedy completion; set a "
        "temperature");
}

// The integer under `column` in a row.
int64_t row_limit(std::string_view line, const std::string& origin, const std::string& column) {
  const auto row = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!row.is_object() || !row.contains(column) || !row.at(column).is_number_integer() ||
      row.at(column).get<int64_t>() < 1)
    throw Error(ErrorCode::kInvalidArgument,
                origin + ": --max-new-tokens-column: '" + column + "' must be an integer above 0");
  return row.at(column).get<int64_t>();
}

struct Prompts {
  std::vector<data::PromptSample> samples;
  models::StopRule stops;
  models::GenerationRequest request;
};

models::StopRule stops_of(const GenerateCommand& command, const models::Tokenizer& tokenizer) {
  try {
    return models::stop_rule(tokenizer, command.stop, command.min_new_tokens);
  } catch (const Error& error) {
    throw Error(error.code(), "--stop: " + error.message());
  }
}

Prompts read_prompts(const GenerateCommand& command, const models::LoadedModel& model) {
  const data::JsonlFile file(command.prompts);
  const data::Source source{.path = command.prompts, .columns = command.columns};

  Prompts prompts;
  models::GenerationRequest& request = prompts.request;
  for (int64_t i = 0; i < file.size(); ++i) {
    const std::string origin = command.prompts + ":" + std::to_string(file.line_number(i));
    prompts.samples.push_back(
        data::make_prompt(file.line(i), origin, source, model.tokenizer, model.chat));
    request.prompts.push_back(prompts.samples.back().prompt_ids);
    if (!command.max_new_tokens_column.empty())
      request.max_new_tokens_of_prompt.push_back(
          row_limit(file.line(i), origin, command.max_new_tokens_column));
  }
  if (request.prompts.empty())
    throw Error(ErrorCode::kInvalidArgument, command.prompts + " has no prompts");

  // How each is continued.
  request.num_generations = command.num_generations;
  request.draw.sampling = command.sampling;
  request.draw.sampling.num_ids = model.tokenizer.vocab_size();
  request.draw.max_new_tokens = command.max_new_tokens;
  request.draw.min_new_tokens = command.min_new_tokens;
  if (!command.ignore_eos) request.draw.eos_token_ids = model.eos_token_ids;
  prompts.stops = stops_of(command, model.tokenizer);
  request.draw.stop = prompts.stops.texts;
  request.draw.stop_token_ids = prompts.stops.token_ids;
  return prompts;
}

// A cache in which --batch-size of the longest sequences fit.
models::EngineOptions engine_options(const GenerateCommand& command,
                                     const models::GenerationRequest& request) {
  models::EngineOptions options;
  int64_t longest = 0;
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    const int64_t limit = request.max_new_tokens_of_prompt.empty()
                              ? request.draw.max_new_tokens
                              : request.max_new_tokens_of_prompt[i];
    longest = std::max(longest, static_cast<int64_t>(request.prompts[i].size()) + limit);
  }
  const int64_t completions =
      static_cast<int64_t>(request.prompts.size()) * request.num_generations;
  options.max_sequences = command.batch_size;
  options.max_tokens_per_step = std::max(options.max_tokens_per_step, command.batch_size);
  options.num_blocks = std::min(command.batch_size, completions) *
                       ((longest + options.block_tokens - 1) / options.block_tokens);
  return options;
}

}  // namespace

int run_generate(const GenerateCommand& command) {
  validate(command);
  const models::LoadedModel model = models::load_model(command.model, command.dtype);
  Prompts input = read_prompts(command, model);
  const std::vector<data::PromptSample>& prompts = input.samples;
  models::Engine engine(model.decoder, engine_options(command, input.request),
                        [&](std::span<const int32_t> ids) {
                          return model.tokenizer.decode(ids, /*skip_special_tokens=*/true);
                        });

  const auto start = std::chrono::steady_clock::now();
  const auto completions = engine.run(std::move(input.request));
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  // A line for each prompt, with all of its completions.
  AtomicFile output(command.output);
  const auto per_prompt = static_cast<size_t>(command.num_generations);
  int64_t new_tokens = 0;
  for (const auto& completion : completions)
    new_tokens += static_cast<int64_t>(completion.token_ids.size());
  for (size_t p = 0; p < prompts.size(); ++p) {
    const size_t first = p * per_prompt;
    JsonLine line;
    line.add("prompt", std::string_view(prompts[p].prompt_text));
    const std::span own(completions.begin() + static_cast<std::ptrdiff_t>(first), per_prompt);
    line.raw("completions", json_array(own, [&](const auto& c) {
               return json_quote(models::completion_text(model.tokenizer, c.token_ids,
                                                         c.finish_reason, input.stops));
             }));
    line.raw("token_ids", json_array(own, [](const auto& c) {
               return json_array(c.token_ids, [](int32_t id) { return std::to_string(id); });
             }));
    line.raw("logps", json_array(own, [](const auto& c) {
               return json_array(c.logps, [](float value) { return json_number(value); });
             }));
    line.raw("finish_reasons",
             json_array(own, [](const auto& c) { return json_quote(enum_name(c.finish_reason)); }));
    if (!prompts[p].reference.empty())
      line.add("reference", std::string_view(prompts[p].reference));
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

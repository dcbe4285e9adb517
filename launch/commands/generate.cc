// retort generate: batch generation from a file of prompts.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json_text.h"
#include "launch/commands/columns.h"
#include "launch/commands/command_line.h"
#include "models/generation/engine.h"
#include "models/generation/request.h"
#include "models/generation/stop_text.h"
#include "models/loaded_model.h"
#include "recipes/data/jsonl.h"
#include "recipes/data/sample.h"

namespace retort::launch {
namespace {

struct GenerateCommand {
  std::string model, prompts, output;
  Columns columns;
  std::string dtype;
  int64_t max_new_tokens = 256, min_new_tokens = 0, num_generations = 1, batch_size = 32;
  models::SamplingOptions sampling;
  std::vector<std::string> stop;
  std::string max_new_tokens_column;  // an integer of each row instead of max_new_tokens
  bool ignore_eos = false;
};

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

Prompts read_prompts(const GenerateCommand& command,
                     const std::map<std::string, std::string>& columns,
                     const models::LoadedModel& model) {
  const data::JsonlFile file(command.prompts);
  const data::Source source{.path = command.prompts, .columns = columns};

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

  // Every prompt is continued in the same way, but for a limit that its row has.
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

// The line of one prompt, with all of its completions.
std::string completions_line(const models::Tokenizer& tokenizer, const models::StopRule& stops,
                             const data::PromptSample& prompt,
                             std::span<const models::Completion> completions) {
  JsonLine line;
  line.add("prompt", std::string_view(prompt.prompt_text));
  line.raw(
      "completions", json_array(completions, [&](const auto& c) {
        return json_quote(models::completion_text(tokenizer, c.token_ids, c.finish_reason, stops));
      }));
  line.raw("token_ids", json_array(completions, [](const auto& c) {
             return json_array(c.token_ids, [](int32_t id) { return std::to_string(id); });
           }));
  line.raw("logps", json_array(completions, [](const auto& c) {
             return json_array(c.logps, [](float value) { return json_number(value); });
           }));
  line.raw("finish_reasons", json_array(completions, [](const auto& c) {
             return json_quote(enum_name(c.finish_reason));
           }));
  if (!prompt.reference.empty()) line.add("reference", std::string_view(prompt.reference));
  return line.str();
}

int run_generate(const GenerateCommand& command) {
  const std::map<std::string, std::string> columns = parse_columns(command.columns);
  validate(command);
  const models::LoadedModel model = models::load_model(command.model, command.dtype);
  Prompts input = read_prompts(command, columns, model);
  const std::vector<data::PromptSample>& prompts = input.samples;
  models::Engine engine(model.decoder, engine_options(command, input.request),
                        [&](std::span<const int32_t> ids) {
                          return model.tokenizer.decode(ids, /*skip_special_tokens=*/true);
                        });

  // Only the drawing is timed, without the loading of the model.
  const auto start = std::chrono::steady_clock::now();
  const auto completions = engine.run(std::move(input.request));
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  // The file is there when it is complete, so that no program reads half of it.
  AtomicFile output(command.output);
  const auto per_prompt = static_cast<size_t>(command.num_generations);
  int64_t new_tokens = 0;
  for (const auto& completion : completions)
    new_tokens += static_cast<int64_t>(completion.token_ids.size());
  for (size_t p = 0; p < prompts.size(); ++p) {
    const auto first = static_cast<std::ptrdiff_t>(p * per_prompt);
    const std::span own(completions.begin() + first, per_prompt);
    output.write(completions_line(model.tokenizer, input.stops, prompts[p], own) + "\n");
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

// How tokens are drawn, and where a completion ends.
void add_draw(Command c, GenerateCommand& o) {
  models::SamplingOptions& sampling = o.sampling;
  c.option("--max-new-tokens", o.max_new_tokens).shows_default();
  c.option("--min-new-tokens", o.min_new_tokens,
           "tokens before which nothing ends a completion; 0: off")
      .shows_default();
  c.option("--temperature", sampling.temperature, "0: greedy").shows_default();
  c.option("--top-p", sampling.top_p).shows_default();
  c.option("--top-k", sampling.top_k, "0: off").shows_default();
  c.option("--min-p", sampling.min_p, "least share of the largest probability; 0: off")
      .shows_default();
  c.option("--typical-p", sampling.typical_p,
           "mass of the tokens whose -log p is nearest to the entropy; 1: off")
      .shows_default();
  c.option("--repetition-penalty", sampling.repetition_penalty, "1: off").shows_default();
  c.option("--presence-penalty", sampling.presence_penalty,
           "off each token that the completion has; 0: off")
      .shows_default();
  c.option("--frequency-penalty", sampling.frequency_penalty,
           "off a token for each time that the completion has it; 0: off")
      .shows_default();
  c.option("--stop", o.stop, "text that ends a completion; may be given several times").takes_one();
  c.flag("--ignore-eos", o.ignore_eos, "end tokens do not end a completion");
  c.option("--max-new-tokens-column", o.max_new_tokens_column,
           "column with each prompt's own --max-new-tokens");
}

}  // namespace

void add_generate(Command program) {
  Command c = program.command("generate", "batch generation from a file of prompts");
  GenerateCommand& o = c.runs(run_generate);
  c.option("--model", o.model, "Hugging Face folder").required();
  c.option("--prompts", o.prompts, "JSONL file with prompts").required();
  c.option("--output", o.output, "JSONL file to write").required();
  c.option("--columns", o.columns, "canonical=column pairs, e.g. prompt=question");
  c.option("--dtype", o.dtype, "float32 | bfloat16 (default: as the file)");
  add_draw(c, o);

  // How many are drawn, and from which noise.
  c.option("--num-generations", o.num_generations, "completions of each prompt").shows_default();
  c.option("--batch-size", o.batch_size, "sequences computed together").shows_default();
  c.option("--seed", o.sampling.seed).shows_default();
}

}  // namespace retort::launch

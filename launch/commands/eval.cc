// retort eval: loss of a checkpoint on a data file, and with --output every token's
// log-probability.
#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json_text.h"
#include "launch/commands/columns.h"
#include "launch/commands/command_line.h"
#include "models/generation/generate.h"
#include "models/loaded_model.h"
#include "recipes/data/answer.h"
#include "recipes/data/batches.h"
#include "recipes/data/dataset.h"
#include "recipes/data/jsonl.h"
#include "recipes/losses/linear_cross_entropy.h"
#include "recipes/losses/linear_log_probs.h"

namespace retort::launch {
namespace {

struct EvalCommand {
  std::string model, data, output;  // output: per-sample JSONL, optional
  std::string format = "auto";
  Columns columns;
  std::string dtype;  // "": as the file
  int64_t max_length = 1024;
  int64_t batch_size = 16;   // samples computed together
  bool exact_match = false;  // generate greedily and compare numeric answers
  int64_t max_new_tokens = 128;
};

// {token_ids, logps, targets}: logps[i] belongs to token_ids[i+1].
std::string sample_line(const data::Sample& sample, const std::vector<double>& logps) {
  std::vector<int> targets(sample.is_target.begin() + 1, sample.is_target.end());
  return JsonLine()
             .raw("token_ids",
                  json_array(sample.input_ids, [](int32_t id) { return std::to_string(id); }))
             .raw("logps", json_array(logps, [](double value) { return json_number(value); }))
             .raw("targets", json_array(targets, [](int target) { return std::to_string(target); }))
             .str() +
         "\n";
}

struct Totals {
  double loss = 0, correct = 0, entropy = 0;
  int64_t targets = 0, tokens = 0, samples = 0;
};

void evaluate_batch(const models::LoadedModel& model, std::vector<data::Sample> samples,
                    Totals& totals, AtomicFile* output) {
  const data::MicroBatch batch = data::make_micro_batch(std::move(samples));
  c10::InferenceMode inference;
  const at::Tensor hidden = model.decoder.hidden(batch.tokens);
  const models::Head head = model.decoder.head();
  if (batch.num_targets() > 0) {
    const auto result =
        losses::linear_cross_entropy(hidden.index_select(0, batch.predict_positions), head.weight,
                                     {}, batch.targets, 0, head.vocab, head.softcap);
    totals.loss += result.loss_sum.item<double>();
    totals.correct += static_cast<double>(result.num_correct);
    totals.entropy += result.entropy_sum;
  }

  totals.targets += batch.num_targets();
  totals.tokens += batch.tokens.num_tokens();
  totals.samples += static_cast<int64_t>(batch.samples.size());

  // With --output every token's log-probability is written as well, whether it is a target or not.
  if (!output) return;
  for (size_t s = 0; s < batch.samples.size(); ++s) {
    const int64_t begin = batch.tokens.cu_seqlens[s];
    const int64_t length = batch.tokens.cu_seqlens[s + 1] - begin;
    std::vector<double> logps;
    if (length > 1) {
      const at::Tensor values =
          losses::linear_log_probs(hidden.narrow(0, begin, length - 1), head.weight, {},
                                   batch.tokens.input_ids.narrow(0, begin + 1, length - 1), {},
                                   head.vocab, head.softcap)
              .log_probs;
      logps.assign(values.const_data_ptr<float>(), values.const_data_ptr<float>() + values.numel());
    }
    output->write(sample_line(batch.samples[s], logps));
  }
}

// Share of problems whose greedily generated answer is the reference's, by the rules of the reward
// `numeric`.
double exact_match(const EvalCommand& command, const models::LoadedModel& model,
                   const data::Source& source) {
  const data::JsonlFile file(command.data);
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::string> references;
  for (int64_t i = 0; i < file.size(); ++i) {
    const std::string origin = command.data + ":" + std::to_string(file.line_number(i));
    data::PromptSample prompt =
        data::make_prompt(file.line(i), origin, source, model.tokenizer, model.chat);
    if (prompt.reference.empty())
      throw Error(ErrorCode::kInvalidArgument,
                  origin + ": --exact-match needs an answer or completion to compare with");
    if (!data::has_answer(prompt.reference))
      throw Error(ErrorCode::kInvalidArgument,
                  origin +
                      ": --exact-match compares numbers, and the row's answer holds none that "
                      "can be read; docs/rewards.md says which are");
    prompts.push_back(std::move(prompt.prompt_ids));
    references.push_back(std::move(prompt.reference));
  }
  const models::SamplingOptions greedy{.temperature = 0, .num_ids = model.tokenizer.vocab_size()};
  const auto completions = models::generate(model.decoder, prompts,
                                            {.draw = {.sampling = greedy,
                                                      .max_new_tokens = command.max_new_tokens,
                                                      .eos_token_ids = model.eos_token_ids},
                                             .max_batch = command.batch_size});
  int64_t correct = 0;
  for (size_t i = 0; i < completions.size(); ++i)
    correct +=
        data::same_answer(model.tokenizer.decode(completions[i].token_ids, true), references[i]);
  return static_cast<double>(correct) / static_cast<double>(completions.size());
}

int run_eval(const EvalCommand& command) {
  const std::map<std::string, std::string> columns = parse_columns(command.columns);
  const models::LoadedModel model = models::load_model(command.model, command.dtype);
  data::DataOptions options;
  options.max_length = command.max_length;
  const data::Source source{
      .path = command.data, .format = parse_enum<data::Format>(command.format), .columns = columns};
  const data::Dataset dataset({source}, options, model.tokenizer, model.chat, {});

  std::optional<AtomicFile> output;
  if (!command.output.empty()) output.emplace(command.output);

  // Samples are computed --batch-size at a time.
  Totals totals;
  std::vector<data::Sample> samples;
  for (int64_t row = 0; row < dataset.size(); ++row) {
    if (auto sample = dataset.get(row)) samples.push_back(std::move(*sample));
    if (static_cast<int64_t>(samples.size()) == command.batch_size || row + 1 == dataset.size()) {
      if (!samples.empty())
        evaluate_batch(model, std::move(samples), totals, output ? &*output : nullptr);
      samples.clear();
    }
  }

  // Means are over target tokens, whatever samples they are in.
  if (totals.targets == 0)
    throw Error(ErrorCode::kInvalidArgument, command.data + " has no target token");
  if (output) output->commit();
  const double count = static_cast<double>(totals.targets);
  const double loss = totals.loss / count;

  // The last line of what is printed is for programs.
  JsonLine line;
  line.add("loss", loss)
      .add("perplexity", std::exp(loss))
      .add("num_tokens", totals.targets)
      .add("mean_token_accuracy", totals.correct / count)
      .add("entropy", totals.entropy / count)
      .add("num_samples", totals.samples)
      .add("num_input_tokens", totals.tokens);
  if (command.exact_match) line.add("exact_match", exact_match(command, model, source));
  std::printf("%s\n", line.str().c_str());
  return 0;
}

}  // namespace

void add_eval(Command program) {
  Command c =
      program.command("eval", "loss and accuracy of a checkpoint on a data file, as one JSON line");
  EvalCommand& o = c.runs(run_eval);
  c.option("--model", o.model, "Hugging Face folder").required();
  c.option("--data", o.data, "JSONL file").required();
  c.option("--output", o.output, "write per-sample token_ids, logps and targets here");
  c.option("--format", o.format, "how rows are read (default: by their keys)");
  c.option("--columns", o.columns,
           "canonical=column pairs, e.g. prompt=question completion=answer");
  c.option("--dtype", o.dtype, "float32 | bfloat16 (default: as the file)");
  c.option("--max-length", o.max_length, "tokens of a row").shows_default();
  c.option("--batch-size", o.batch_size, "samples computed together").shows_default();
  c.flag("--exact-match", o.exact_match, "also generate greedily and compare the numeric answers");
  c.option("--max-new-tokens", o.max_new_tokens, "of a generated answer").shows_default();
}

}  // namespace retort::launch

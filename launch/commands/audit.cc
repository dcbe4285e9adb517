// retort audit: samples as the trainer sees them.
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "launch/commands/commands.h"
#include "launch/recipe.h"
#include "recipes/data/batches.h"
#include "recipes/data/dataset.h"
#include "recipes/data/preference_dataset.h"

namespace retort::launch {
namespace {

// Targets stand out; on a terminal in green, elsewhere between [[ and ]].
class MaskPrinter {
 public:
  explicit MaskPrinter(bool color) : color_(color) {}

  void print(const data::Sample& sample, const models::Tokenizer& tokenizer) const {
    std::string text;
    bool inside = false;
    for (size_t i = 0; i < sample.input_ids.size();) {
      const bool target = sample.is_target[i] != 0;
      size_t end = i;
      while (end < sample.input_ids.size() && (sample.is_target[end] != 0) == target)
        ++end;
      if (target != inside) text += target ? open() : close();
      inside = target;
      text +=
          tokenizer.decode({sample.input_ids.data() + i, end - i}, /*skip_special_tokens=*/false);
      i = end;
    }
    if (inside) text += close();
    std::printf("%s\n", text.c_str());
  }

 private:
  const char* open() const { return color_ ? "\033[1;32m" : "[["; }
  const char* close() const { return color_ ? "\033[0m" : "]]"; }
  bool color_;
};

struct Counts {
  int64_t samples = 0, tokens = 0, targets = 0, truncated = 0, longest = 0;
};

Counts count_samples(const data::Dataset& dataset) {
  Counts counts;
  for (int64_t row = 0; row < dataset.size(); ++row) {
    const auto sample = dataset.get(row);  // a sample without targets throws, naming file and line
    if (!sample) continue;
    const auto length = static_cast<int64_t>(sample->input_ids.size());
    ++counts.samples;
    counts.tokens += length;
    counts.targets += sample->num_targets();
    counts.truncated += sample->truncated;
    counts.longest = std::max(counts.longest, length);
  }
  return counts;
}

data::Sample joined(const data::PreferenceSample& pair, const std::vector<int32_t>& completion) {
  data::Sample sample{.input_ids = pair.prompt_ids,
                      .is_target = std::vector<uint8_t>(pair.prompt_ids.size(), 0)};
  sample.input_ids.insert(sample.input_ids.end(), completion.begin(), completion.end());
  sample.is_target.resize(sample.input_ids.size(), 1);
  return sample;
}

// Pairs of a dpo recipe: both completions of the first ones, and counts of all.
int audit_pairs(const Recipe& recipe, int64_t to_show) {
  const std::string& model = recipe.roles.at("student").model;
  const models::Tokenizer tokenizer = models::Tokenizer::load(model);
  const data::PreferenceDataset dataset(recipe.data.train, recipe.data, tokenizer,
                                        models::ChatTemplate::load(model), "");
  const MaskPrinter printer(::isatty(STDOUT_FILENO) != 0);
  int64_t pairs = 0, prompt = 0, chosen = 0, rejected = 0, truncated = 0, identical = 0;
  for (int64_t row = 0; row < dataset.size(); ++row) {
    const auto pair = dataset.get(row);
    if (!pair) continue;
    if (pairs++ < to_show) {
      std::printf("--- %s: prompt %zu tokens%s%s\nchosen, %zu targets:\n", pair->origin.c_str(),
                  pair->prompt_ids.size(), pair->truncated ? ", truncated" : "",
                  pair->identical ? ", chosen and rejected are the same" : "",
                  pair->chosen_ids.size());
      printer.print(joined(*pair, pair->chosen_ids), tokenizer);
      std::printf("rejected, %zu targets:\n", pair->rejected_ids.size());
      printer.print(joined(*pair, pair->rejected_ids), tokenizer);
    }
    prompt += static_cast<int64_t>(pair->prompt_ids.size());
    chosen += static_cast<int64_t>(pair->chosen_ids.size());
    rejected += static_cast<int64_t>(pair->rejected_ids.size());
    truncated += pair->truncated;
    identical += pair->identical;
  }
  if (pairs == 0) throw Error(ErrorCode::kInvalidArgument, "the training data has no usable pair");
  const auto mean = [&](int64_t sum) {
    return static_cast<double>(sum) / static_cast<double>(pairs);
  };
  std::printf(
      "--- all: %lld pairs; mean tokens: prompt %.1f, chosen %.1f, rejected %.1f; truncated %lld, "
      "identical %lld, skipped %lld\n",
      static_cast<long long>(pairs), mean(prompt), mean(chosen), mean(rejected),
      static_cast<long long>(truncated), static_cast<long long>(identical),
      static_cast<long long>(dataset.num_skipped()));
  return 0;
}

}  // namespace

int run_audit(const RecipeCommand& command) {
  const Recipe recipe = load_recipe(command.recipe, command.overrides, {.cuda = true});
  if (recipe.recipe == RecipeKind::kDpo) return audit_pairs(recipe, command.samples);
  const RoleOptions& student = recipe.roles.at("student");
  const models::Tokenizer tokenizer = models::Tokenizer::load(student.model);
  const models::ChatTemplate chat = models::ChatTemplate::load(student.model);
  const auto dataset =
      std::make_shared<data::Dataset>(recipe.data.train, recipe.data, tokenizer, chat, "");
  const MaskPrinter printer(::isatty(STDOUT_FILENO) != 0);
  for (int64_t row = 0, shown = 0; row < dataset->size() && shown < command.samples; ++row) {
    const auto sample = dataset->get(row);
    if (!sample) continue;
    std::printf("--- %s: %zu tokens, %lld targets%s\n", sample->origin.c_str(),
                sample->input_ids.size(), static_cast<long long>(sample->num_targets()),
                sample->truncated ? ", truncated" : "");
    printer.print(*sample, tokenizer);
    ++shown;
  }
  const Counts counts = count_samples(*dataset);
  if (counts.samples == 0)
    throw Error(ErrorCode::kInvalidArgument, "the training data has no usable sample");
  std::printf(
      "--- all: %lld samples, %lld tokens, %lld targets (%.1f %%), longest %lld, truncated %lld, "
      "skipped %lld\n",
      static_cast<long long>(counts.samples), static_cast<long long>(counts.tokens),
      static_cast<long long>(counts.targets),
      100.0 * static_cast<double>(counts.targets) / static_cast<double>(counts.tokens),
      static_cast<long long>(counts.longest), static_cast<long long>(counts.truncated),
      static_cast<long long>(dataset->num_skipped()));
  data::BatchStream stream(
      dataset, {.seed = static_cast<uint64_t>(recipe.seed),
                .rows_per_micro_batch = recipe.train.per_device_train_batch_size.value_or(1),
                .tokens_per_micro_batch = recipe.train.tokens_per_batch.value_or(0),
                .micro_batches = recipe.train.gradient_accumulation_steps,
                .max_length = recipe.data.max_length,
                .packing = recipe.data.packing,
                .shuffle = recipe.data.shuffle,
                .dp_size = student.world.dp});
  const auto step = stream.next();
  int64_t tokens = 0, targets = 0, sequences = 0;
  for (const auto& batch : step.micro_batches) {
    tokens += batch.tokens.num_tokens();
    targets += batch.num_targets();
    sequences += batch.tokens.num_sequences();
  }
  std::printf(
      "--- first step of data-parallel rank 0: %zu micro-batches, %lld samples, %lld tokens, %lld "
      "targets\n",
      step.micro_batches.size(), static_cast<long long>(sequences), static_cast<long long>(tokens),
      static_cast<long long>(targets));
  return 0;
}

}  // namespace retort::launch

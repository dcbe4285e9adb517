#include "recipes/dpo/audit.h"

#include <cstdio>

#include "recipes/audit/audit.h"
#include "recipes/data/completion_sample.h"
#include "recipes/data/preference_dataset.h"
#include "recipes/run/rows/row_warnings.h"

namespace retort::recipes {
namespace {

void print_pair(const data::PreferenceSample& pair, const models::Tokenizer& tokenizer) {
  const MaskPrinter printer;
  std::printf("--- %s: prompt %zu tokens%s%s\nchosen, %zu targets:\n", pair.origin.c_str(),
              pair.prompt_ids.size(), pair.truncated ? ", truncated" : "",
              pair.identical ? ", chosen and rejected are the same" : "", pair.chosen_ids.size());
  printer.print(data::completion_sample(pair.prompt_ids, pair.chosen_ids), tokenizer);
  std::printf("rejected, %zu targets:\n", pair.rejected_ids.size());
  printer.print(data::completion_sample(pair.rejected_prompt_ids(), pair.rejected_ids), tokenizer);
}

struct Counts {
  int64_t usable = 0, prompt = 0, chosen = 0, rejected = 0, truncated = 0, identical = 0;

  void add(const data::PreferenceSample& pair) {
    ++usable;
    prompt += static_cast<int64_t>(pair.prompt_ids.size());
    chosen += static_cast<int64_t>(pair.chosen_ids.size());
    rejected += static_cast<int64_t>(pair.rejected_ids.size());
    truncated += pair.truncated;
    identical += pair.identical;
  }
  double mean(int64_t sum) const { return static_cast<double>(sum) / static_cast<double>(usable); }
};

}  // namespace

void audit_pairs(const Recipe& recipe, int64_t num_pairs) {
  const models::Tokenizer tokenizer = models::Tokenizer::load(recipe.student().model);
  const auto dataset = open_for_audit<data::PreferenceDataset>(recipe, tokenizer);
  Counts counts;
  audit_items(dataset, num_pairs, "pair", counts,
              [&](const auto& pair) { print_pair(pair, tokenizer); });
  std::printf(
      "--- all: %lld pairs; mean tokens: prompt %.1f, chosen %.1f, rejected %.1f; truncated %lld, "
      "identical %lld, skipped %lld\n",
      static_cast<long long>(counts.usable), counts.mean(counts.prompt), counts.mean(counts.chosen),
      counts.mean(counts.rejected), static_cast<long long>(counts.truncated),
      static_cast<long long>(counts.identical), static_cast<long long>(dataset.num_skipped()));
  print_row_warnings(dataset, recipe.student().model);
}

}  // namespace retort::recipes

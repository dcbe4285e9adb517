#include "recipes/kto/audit.h"

#include <cstdio>

#include "recipes/audit/audit.h"
#include "recipes/data/completion_sample.h"
#include "recipes/data/unpaired_dataset.h"
#include "recipes/run/rows/row_warnings.h"

namespace retort::recipes {
namespace {

void print_row(const data::UnpairedSample& row, int64_t max_length,
               const models::Tokenizer& tokenizer) {
  const std::vector<int32_t> completion =
      data::fit_completion(row.prompt_ids, row.completion_ids, max_length);
  std::printf("--- %s: %s, prompt %zu tokens, completion %zu%s\n", row.origin.c_str(),
              row.desirable ? "desirable" : "undesirable", row.prompt_ids.size(), completion.size(),
              row.truncated ? ", truncated" : "");
  const MaskPrinter printer;
  printer.print(data::completion_sample(row.prompt_ids, completion), tokenizer);
}

struct Counts {
  int64_t usable = 0, tokens = 0, desirable = 0, truncated = 0;

  void add(const data::UnpairedSample& row) {
    ++usable;
    tokens += row.num_tokens;
    desirable += row.desirable;
    truncated += row.truncated;
  }
};

// The paper asks of the weights that both labels count about alike.
void print_balance(const Counts& counts, const KtoOptions& kto) {
  const int64_t undesirable = counts.usable - counts.desirable;
  if (counts.desirable == 0 || undesirable == 0) {
    std::printf("--- all rows have one label; the loss has nothing to tell them from\n");
    return;
  }
  const double desirable_total = kto.desirable_weight * static_cast<double>(counts.desirable);
  const double undesirable_total = kto.undesirable_weight * static_cast<double>(undesirable);
  std::printf(
      "--- desirable_weight * desirable rows : undesirable_weight * undesirable rows = %.2f "
      "(advised: 1 to 1.33)\n",
      desirable_total / undesirable_total);
}

}  // namespace

void audit_labels(const Recipe& recipe, int64_t num_rows) {
  const models::Tokenizer tokenizer = models::Tokenizer::load(recipe.student().model);
  const auto dataset = open_for_audit<data::UnpairedDataset>(recipe, tokenizer);
  Counts counts;
  audit_items(dataset, num_rows, "row", counts,
              [&](const auto& row) { print_row(row, dataset.max_length(), tokenizer); });
  std::printf(
      "--- all: %lld rows, %lld desirable, %lld undesirable; mean tokens %.1f; truncated %lld, "
      "skipped %lld\n",
      static_cast<long long>(counts.usable), static_cast<long long>(counts.desirable),
      static_cast<long long>(counts.usable - counts.desirable),
      static_cast<double>(counts.tokens) / static_cast<double>(counts.usable),
      static_cast<long long>(counts.truncated), static_cast<long long>(dataset.num_skipped()));
  print_row_warnings(dataset, recipe.student().model);
  print_balance(counts, *recipe.kto);
}

}  // namespace retort::recipes

#include "recipes/audit/audit.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/error.h"
#include "recipes/data/batches.h"
#include "recipes/data/dataset.h"
#include "recipes/run/inputs/answer_end.h"
#include "recipes/run/inputs/batch_options.h"
#include "recipes/run/rows/row_warnings.h"
#include "recipes/type/registry.h"

namespace retort::recipes {
namespace {

struct Counts {
  int64_t usable = 0, tokens = 0, targets = 0, truncated = 0, longest = 0;

  void add(const data::Sample& sample) {
    const auto length = static_cast<int64_t>(sample.input_ids.size());
    ++usable;
    tokens += length;
    targets += sample.num_targets();
    truncated += sample.truncated;
    longest = std::max(longest, length);
  }
};

void print_sample(const data::Sample& sample, const models::Tokenizer& tokenizer) {
  const MaskPrinter printer;
  std::printf("--- %s: %zu tokens, %lld targets%s\n", sample.origin.c_str(),
              sample.input_ids.size(), static_cast<long long>(sample.num_targets()),
              sample.truncated ? ", truncated" : "");
  printer.print(sample, tokenizer);
}

void print_counts(const Counts& counts, int64_t num_skipped) {
  std::printf(
      "--- all: %lld samples, %lld tokens, %lld targets (%.1f %%), longest %lld, truncated %lld, "
      "skipped %lld\n",
      static_cast<long long>(counts.usable), static_cast<long long>(counts.tokens),
      static_cast<long long>(counts.targets),
      100.0 * static_cast<double>(counts.targets) / static_cast<double>(counts.tokens),
      static_cast<long long>(counts.longest), static_cast<long long>(counts.truncated),
      static_cast<long long>(num_skipped));
}

void print_first_step(const data::BatchStream::Step& step) {
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
}

}  // namespace

MaskPrinter::MaskPrinter() {
  const bool color = ::isatty(STDOUT_FILENO) != 0;
  open_ = color ? "\033[1;32m" : "[[";
  close_ = color ? "\033[0m" : "]]";
}

void MaskPrinter::print(const data::Sample& sample, const models::Tokenizer& tokenizer) const {
  std::string text;
  bool inside = false;
  for (size_t i = 0; i < sample.input_ids.size();) {
    const bool target = sample.is_target[i] != 0;
    // Neighbours of one kind are decoded together, because a character may span several tokens.
    size_t end = i;
    while (end < sample.input_ids.size() && (sample.is_target[end] != 0) == target)
      ++end;
    if (target != inside) text += target ? open_ : close_;
    inside = target;
    text += tokenizer.decode({sample.input_ids.data() + i, end - i}, /*skip_special_tokens=*/false);
    i = end;
  }
  if (inside) text += close_;
  std::printf("%s\n", text.c_str());
}

void print_template(const models::ChatTemplate& chat) {
  std::printf("--- chat template: %s\n", chat.description().c_str());
}

void print_unheard_end(const Recipe& recipe, const data::RowFindings& found) {
  const models::Tokenizer tokenizer = models::Tokenizer::load(recipe.student().model);
  if (const auto warning = unheard_end(recipe, load_chat(recipe), tokenizer, found.has_messages))
    std::printf("--- warning: %s\n", warning->c_str());
}

data::RowFindings look_at_rows(const Recipe& recipe) {
  const data::RowScan scan({.train = recipe.data.train,
                            .eval = recipe.data.eval,
                            .check = recipe_type(recipe).row_check(recipe),
                            .cache = ""});
  const data::RowFindings& found = scan.findings();
  if (recipe.data.on_bad_sample == data::OnBadSample::kError) found.bad.refuse(found.rows);
  return found;
}

void audit_samples(const Recipe& recipe, int64_t num_samples, data::SampleRule rule) {
  const models::Tokenizer tokenizer = models::Tokenizer::load(recipe.student().model);
  const models::ChatTemplate chat = load_chat(recipe);
  print_template(chat);
  const auto dataset = std::make_shared<data::Dataset>(recipe.data.train, recipe.data, tokenizer,
                                                       chat, /*cache=*/"", std::move(rule));
  dataset->compare_prompts();
  Counts counts;
  audit_items(*dataset, num_samples, "sample", counts,
              [&](const data::Sample& sample) { print_sample(sample, tokenizer); });
  print_counts(counts, dataset->num_skipped());
  print_row_warnings(*dataset, recipe.student().model);
  print_first_step(data::BatchStream(dataset, batch_options(recipe, 0)).next());
}

}  // namespace retort::recipes

// `retort audit`: what the trainer will see, for people to look at.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "models/text/tokenizer.h"
#include "recipes/data/dataset.h"
#include "recipes/recipe.h"
#include "recipes/run/template_day.h"

namespace retort::recipes {

// Prints a sample's text with its targets marked: in green on a terminal, elsewhere between [[ and
// ]].
class MaskPrinter {
 public:
  MaskPrinter();
  void print(const data::Sample& sample, const models::Tokenizer& tokenizer) const;

 private:
  std::string open_, close_;
};

// Shows the first `num_shown` usable items of a set, and counts them all: counts.add(item), and its
// `usable` are those so far. kInvalidArgument if there is none; `what` is the word for one.
template <class Set, class Counts, class Show>
void audit_items(const Set& set, int64_t num_shown, const char* what, Counts& counts, Show&& show) {
  for (int64_t row = 0; row < set.size(); ++row) {
    const auto item = set.get(row);
    if (!item) continue;
    if (counts.usable < num_shown) show(*item);
    counts.add(*item);
  }
  if (counts.usable == 0)
    throw Error(ErrorCode::kInvalidArgument,
                std::string("the training data has no usable ") + what);
}

// Says where the chat template comes from, and how it shows what the assistant said.
void print_template(const models::ChatTemplate& chat);

// The training rows of a recipe as the student reads them; nothing is kept on disk.
template <class Set>
Set open_for_audit(const Recipe& recipe, const models::Tokenizer& tokenizer) {
  const models::ChatTemplate chat = load_chat(recipe);
  print_template(chat);
  return Set(recipe.data.train, recipe.data, tokenizer, chat, /*cache=*/"");
}

// Packed samples: the first `num_samples` of data.train, counts of all, and the first step's shape.
void audit_samples(const Recipe& recipe, int64_t num_samples, data::SampleRule rule = {});

}  // namespace retort::recipes

// `retort audit`: what the trainer will see, for people to look at.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "models/text/tokenizer.h"
#include "recipes/data/bad_rows.h"
#include "recipes/data/dataset.h"
#include "recipes/data/row_scan.h"
#include "recipes/document/recipe.h"
#include "recipes/run/inputs/chat.h"

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
// `usable` are those so far. kInvalidArgument if there is none, `what` being the word for one, and
// naming all bad rows of a set that does not skip them.
template <class Set, class Counts, class Show>
void audit_items(const Set& set, int64_t num_shown, const char* what, Counts& counts, Show&& show) {
  data::BadRows bad;
  for (int64_t row = 0; row < set.size(); ++row)
    data::collect_bad_row(bad, set.origin(row), [&] {
      const auto item = set.get(row);
      if (!item) return;
      if (counts.usable < num_shown) show(*item);
      counts.add(*item);
    });
  bad.refuse(set.size());
  if (counts.usable == 0)
    throw Error(ErrorCode::kInvalidArgument,
                std::string("the training data has no usable ") + what);
}

// Says where the chat template comes from, and how it shows what the assistant said.
void print_template(const models::ChatTemplate& chat);

// Says where nothing that is drawn ends at the end of the template's answers (unheard_end()).
void print_unheard_end(const Recipe& recipe, const data::RowFindings& found);

// The training rows of a recipe as the student reads them; nothing is kept on disk.
template <class Set>
Set open_for_audit(const Recipe& recipe, const models::Tokenizer& tokenizer) {
  const models::ChatTemplate chat = load_chat(recipe);
  print_template(chat);
  return Set(recipe.data.train, recipe.data, tokenizer, chat, /*cache=*/"");
}

// Looks at all rows of data.train and data.eval without tokenising them, and returns what it found.
// kInvalidArgument naming all bad ones where they are errors.
data::RowFindings look_at_rows(const Recipe& recipe);

// Packed samples: the first `num_samples` of data.train, counts of all, and the first step's shape.
void audit_samples(const Recipe& recipe, int64_t num_samples, data::SampleRule rule = {});

}  // namespace retort::recipes

// `retort audit`: what the trainer will see, for people to look at.
#pragma once

#include <cstdint>
#include <string>

#include "models/text/tokenizer.h"
#include "recipes/data/sample.h"
#include "recipes/recipe.h"

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

// Packed samples: the first `num_samples` of data.train, counts of all, and the first step's shape.
void audit_samples(const Recipe& recipe, int64_t num_samples);

}  // namespace retort::recipes

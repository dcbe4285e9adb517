#pragma once

#include <string>

#include "recipes/data/row_set.h"
#include "recipes/data/unpaired.h"

namespace retort::data {

// It uses the options max_length and on_bad_sample alone. Threads: get() may be called from any
// thread.
class UnpairedDataset : public ItemSet<UnpairedSample> {
 public:
  using ItemSet::ItemSet;

 private:
  Shaping shaping() const override;
  UnpairedSample make(const Line& line) const override;
};

}  // namespace retort::data

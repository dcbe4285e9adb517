#pragma once

#include <string>

#include "recipes/data/preference.h"
#include "recipes/data/row_set.h"

namespace retort::data {

// Of the options max_length and on_bad_sample are used. Threads: get() may be called from any
// thread.
class PreferenceDataset : public ItemSet<PreferenceSample> {
 public:
  using ItemSet::ItemSet;
  std::string fingerprint() const override;

 protected:
  PreferenceSample make(const Line& line) const override;
};

}  // namespace retort::data

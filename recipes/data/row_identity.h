// The identity of the rows that a run is trained on, which its checkpoints keep.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "recipes/data/options.h"

namespace retort::data {

// RowSet::fingerprint() in its parts, so that a run may go on where only some of them changed.
struct RowIdentity {
  struct File {
    std::string path;         // for messages; not kept in checkpoints, as files may be moved
    std::string fingerprint;  // JsonlFile::fingerprint
    int64_t rows = 0;
  };

  // Hash of formats, columns, tokenizer, chat template and the options that shape rows.
  std::string shape;
  OnBadSample on_bad_sample = OnBadSample::kError;
  std::vector<File> files;  // in their order
};

}  // namespace retort::data

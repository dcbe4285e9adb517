#include "recipes/data/unpaired_dataset.h"

namespace retort::data {

UnpairedSample UnpairedDataset::make(const Line& line) const {
  return make_unpaired(line.text, line.origin, line.source, line.tokenizer, line.chat,
                       max_length());
}

RowSet::Shaping UnpairedDataset::shaping() const {
  return {.kind = "unpaired",
          .options = "max_length=" + std::to_string(max_length()) + " boundary=joined"};
}

}  // namespace retort::data

// The inside of KvCache. Private to models/.
#pragma once

#include <vector>

#include "models/attention.h"
#include "models/decoder.h"

namespace retort::models {

struct KvCache::Impl {
  std::vector<LayerCache> layers;
  std::vector<int64_t> lengths;
  int64_t max_length = 0;
};

}  // namespace retort::models

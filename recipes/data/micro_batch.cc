#include <ATen/ops/empty.h>

#include <algorithm>

#include "base/error.h"
#include "recipes/data/batches.h"
#include "recipes/data/detail/tensors.h"

namespace retort::data {

at::Tensor detail::to_tensor(const std::vector<int64_t>& values) {
  at::Tensor tensor =
      at::empty({static_cast<int64_t>(values.size())}, at::TensorOptions().dtype(at::kLong));
  std::copy(values.begin(), values.end(), tensor.data_ptr<int64_t>());
  return tensor;
}

MicroBatch make_micro_batch(std::vector<Sample> samples) {
  MicroBatch batch;
  std::vector<int64_t> ids, positions, predict, targets;
  batch.tokens.cu_seqlens = {0};
  for (const Sample& sample : samples) {
    RETORT_CHECK(sample.input_ids.size() == sample.is_target.size()) << sample.origin;
    RETORT_CHECK(!sample.input_ids.empty()) << sample.origin;
    for (size_t i = 0; i < sample.input_ids.size(); ++i) {
      // A target is predicted at the position before it, so the first token of a sample can be
      // none.
      if (i > 0 && sample.is_target[i]) {
        predict.push_back(static_cast<int64_t>(ids.size()) - 1);
        targets.push_back(sample.input_ids[i]);
      }
      ids.push_back(sample.input_ids[i]);
      positions.push_back(static_cast<int64_t>(i));
    }
    batch.tokens.cu_seqlens.push_back(static_cast<int64_t>(ids.size()));
  }
  batch.tokens.input_ids = detail::to_tensor(ids);
  batch.tokens.positions = detail::to_tensor(positions);
  batch.predict_positions = detail::to_tensor(predict);
  batch.targets = detail::to_tensor(targets);
  batch.samples = std::move(samples);
  return batch;
}

}  // namespace retort::data

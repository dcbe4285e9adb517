#include "models/kv_cache.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include "base/error.h"

namespace retort::models {

KvCache::KvCache(const ModelConfig& config, int64_t num_sequences, int64_t max_length, at::ScalarType dtype)
    : impl_(std::make_unique<Impl>()) {
  if (num_sequences < 1 || max_length < 1) {
    throw Error(ErrorCode::kInvalidArgument, "a KV cache needs at least one sequence and one token")
        .with("num_sequences", num_sequences)
        .with("max_length", max_length);
  }
  const c10::InferenceMode ordinary(false);
  const int64_t width = config.num_key_value_heads * config.head_dim;
  const auto options = at::TensorOptions().dtype(dtype);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    impl_->layers.push_back(
        {at::empty({num_sequences, max_length, width}, options), at::empty({num_sequences, max_length, width}, options)});
  }
  impl_->lengths.assign(static_cast<size_t>(num_sequences), 0);
  impl_->max_length = max_length;
}

KvCache::~KvCache() = default;
KvCache::KvCache(KvCache&&) noexcept = default;

int64_t KvCache::num_sequences() const { return static_cast<int64_t>(impl_->lengths.size()); }
const std::vector<int64_t>& KvCache::lengths() const { return impl_->lengths; }
int64_t KvCache::max_length() const { return impl_->max_length; }

void KvCache::reset(int64_t sequence) {
  RETORT_CHECK(sequence >= 0 && sequence < num_sequences()) << "sequence " << sequence << " of " << num_sequences();
  impl_->lengths[static_cast<size_t>(sequence)] = 0;
}

}  // namespace retort::models

#include "roles/teacher/hidden_state_cache.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/clone.h>

#include <utility>

namespace retort::roles {

void HiddenStateCache::keep(const std::string& key, int64_t step, const at::Tensor& rows,
                            int64_t bytes) {
  if (!has_room(bytes) || contains(key)) return;

  // Rows that are a view are copied, so that the rest of their forward pass is freed.
  const bool shared = rows.defined() && rows.storage().nbytes() > rows.nbytes();
  kept_[key] = {.step = step, .rows = shared ? rows.clone() : rows, .bytes = bytes};
  bytes_ += bytes;
}

bool HiddenStateCache::take(const std::string& key, at::Tensor& rows) {
  auto entry = kept_.extract(key);
  if (entry.empty()) return false;
  bytes_ -= entry.mapped().bytes;
  rows = std::move(entry.mapped().rows);
  return true;
}

void HiddenStateCache::forget_before(int64_t step) {
  std::erase_if(kept_, [&](const auto& item) {
    const bool old = item.second.step < step;
    if (old) bytes_ -= item.second.bytes;
    return old;
  });
}

}  // namespace retort::roles

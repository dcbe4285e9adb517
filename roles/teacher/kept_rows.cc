#include "roles/teacher/kept_rows.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/clone.h>

#include <utility>

namespace retort::roles {

void KeptRows::forget_old(int64_t now_ms) {
  std::erase_if(kept_, [&](const auto& item) {
    const bool old = item.second.until_ms <= now_ms;
    if (old) bytes_ -= item.second.bytes;
    return old;
  });
}

void KeptRows::keep(const std::string& key, const at::Tensor& rows, int64_t bytes, int64_t now_ms) {
  forget_old(now_ms);
  if (bytes_ + bytes > options_.max_bytes || kept_.contains(key)) return;

  // Without the rest of the forward pass that they were cut from.
  const bool shared = rows.defined() && rows.storage().nbytes() > rows.nbytes();
  kept_[key] = {.rows = shared ? rows.clone() : rows,
                .bytes = bytes,
                .until_ms = now_ms + options_.lease.count()};
  bytes_ += bytes;
}

bool KeptRows::take(const std::string& key, int64_t now_ms, at::Tensor& rows) {
  forget_old(now_ms);
  auto entry = kept_.extract(key);
  if (entry.empty()) return false;
  bytes_ -= entry.mapped().bytes;
  rows = std::move(entry.mapped().rows);
  return true;
}

}  // namespace retort::roles

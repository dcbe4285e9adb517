#include "roles/teacher/shared_packs.h"

#include <utility>

#include "models/ops/shared_prefixes.h"

namespace retort::roles {

void share_prefixes(MergedPacks& merged) {
  models::SharedPrefixes shared = models::share_prefixes(merged.tokens);
  for (at::Tensor& rows : merged.rows)
    rows = models::rows_at(shared.rows, rows);
  merged.tokens = std::move(shared.tokens);
}

}  // namespace retort::roles

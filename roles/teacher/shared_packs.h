// Requests whose sequences begin alike, as completions of one prompt do, computed once.
#pragma once

#include "roles/teacher/requests.h"

namespace retort::roles {

// The same wanted rows of fewer tokens: models::share_prefixes.
void share_prefixes(MergedPacks& merged);

}  // namespace retort::roles

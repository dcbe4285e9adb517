// RowHashes::keep() that may be stopped.
#pragma once

#include <filesystem>
#include <functional>

#include "recipes/data/jsonl.h"

namespace retort::data::detail {

// False if `stop` said so, which is asked for each row and each 4 MiB: then no file is left behind.
// Nothing is kept of a file that is changed meanwhile: the hashes are those of the content that
// their file is named by. `folder`: as `cache` of JsonlFile, not empty. Errors of writing as
// base/file.h; kCorrupt for a file that is changed meanwhile.
bool keep_hashes(const JsonlFile& file, const std::filesystem::path& folder,
                 const std::function<bool()>& stop);

}  // namespace retort::data::detail

// The SHA-256 of a file's content, which is kept where reading the file takes long.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace retort::data::detail {

// 64 hexadecimal digits. That of 64 MiB or more is kept in `cache` (empty: nowhere), as
// `NAME-HASH.sha256` of kept_name(), and made once: of the threads and processes that want it at
// once one makes it, under the lock of `NAME-HASH.lock`. `text` is what `file` holds. nullopt if
// `stop`, which is asked for each 4 MiB and while it waits for that lock, said so; kCorrupt naming
// the file where it was changed while it was read; errors of writing as base/file.h.
std::optional<std::string> content_hash(const std::filesystem::path& file, std::string_view text,
                                        const std::filesystem::path& cache,
                                        const std::function<bool()>& stop);

}  // namespace retort::data::detail

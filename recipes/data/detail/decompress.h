// Plain text of a .gz or .zst file, decompressed once.
#pragma once

#include <filesystem>

namespace retort::data::detail {

// `path` itself if its first bytes are neither gzip's nor Zstandard's; else the decompressed file
// `<cache>/<name>-<16 digits of the content's SHA-256>`, made if it is not there yet (written under
// a temporary name, so that several processes may race for it). All members / frames of the file
// count. kInvalidArgument naming `path` for a damaged or cut file; errors of writing as
// base/file.h.
std::filesystem::path decompressed(const std::filesystem::path& path,
                                   const std::filesystem::path& cache);

}  // namespace retort::data::detail

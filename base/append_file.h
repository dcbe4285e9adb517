// Appending whole lines or records to a file descriptor.
#pragma once

#include <filesystem>
#include <string_view>

namespace retort {

// Opens `path` for appending, creating it. kUnavailable or kResourceExhausted naming the path.
int open_for_append(const std::filesystem::path& path);

// Writes all bytes, in one write(2) unless the system splits it. Errors as open_for_append.
void append_bytes(int fd, std::string_view bytes, const std::filesystem::path& path);

}  // namespace retort

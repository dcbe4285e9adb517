// What a program is given in the place of a file: also by a pipe, as shells make one of `<(...)`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace retort {

// What is read from a pipe at most.
inline constexpr uint64_t kMostPipedBytes = uint64_t{16} << 20;

// The whole file, or all that is written into a pipe until its writers have closed it; for text
// that is read once, by one process. kInvalidArgument, naming the path: what read_file() refuses
// but for pipes, a pipe that nobody writes into, one with more than kMostPipedBytes.
std::string read_file_or_pipe(const std::filesystem::path& path);

}  // namespace retort

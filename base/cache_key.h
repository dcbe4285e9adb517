// What a cache finds token ids by: their content.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace retort {

inline constexpr size_t kContentKeyBytes = 16;

// SHA-256 of (length of `first` as int64, `first`, `second`), cut to kContentKeyBytes raw bytes.
std::string cache_key(std::span<const int32_t> first, std::span<const int32_t> second);

}  // namespace retort

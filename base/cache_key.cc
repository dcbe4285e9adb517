#include "base/cache_key.h"

#include "base/hash.h"

namespace retort {

std::string cache_key(std::span<const int32_t> first, std::span<const int32_t> second) {
  Sha256 hash;
  const auto length = static_cast<int64_t>(first.size());
  hash.update(std::as_bytes(std::span(&length, 1)));
  hash.update(std::as_bytes(first));
  hash.update(std::as_bytes(second));

  const std::string hex = hash.hex_digest();
  std::string key;
  for (size_t i = 0; i < kContentKeyBytes; ++i)
    key += static_cast<char>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  return key;
}

}  // namespace retort

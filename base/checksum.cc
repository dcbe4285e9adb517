#include "base/checksum.h"

#include <xxhash.h>

namespace retort {

uint64_t checksum64(std::span<const std::byte> bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

}  // namespace retort

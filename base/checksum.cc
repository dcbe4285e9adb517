#include "base/checksum.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

namespace retort {

uint64_t checksum64(std::span<const std::byte> bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

// This goes piece by piece, so that the second look at the bytes finds them in the cache.
uint64_t copy_with_checksum64(std::byte* to, std::span<const std::byte> bytes, uint64_t seed) {
  constexpr size_t kPieceBytes = 128 << 10;
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       XXH3_freeState);
  if (!state) throw std::bad_alloc();
  XXH3_64bits_reset_withSeed(state.get(), seed);

  for (size_t begin = 0; begin < bytes.size(); begin += kPieceBytes) {
    const auto piece = bytes.subspan(begin, std::min(kPieceBytes, bytes.size() - begin));
    std::memcpy(to + begin, piece.data(), piece.size());
    XXH3_64bits_update(state.get(), piece.data(), piece.size());
  }
  return XXH3_64bits_digest(state.get());
}

}  // namespace retort

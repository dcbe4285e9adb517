// A fast 64-bit checksum for bytes in transit: finds damage, mixed-up and missing parts; not a defence against an attacker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace retort {

// Eight lanes of multiply and rotate over 8-byte words, mixed with `seed` and the length. The same on every machine
// (little-endian).
uint64_t checksum64(std::span<const std::byte> bytes, uint64_t seed = 0);

}  // namespace retort

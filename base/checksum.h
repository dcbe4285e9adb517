// A fast 64-bit checksum for bytes in transit. It finds damage, mixed-up and missing parts; it is
// no defence against an attacker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace retort {

// XXH3 of 64 bits (xxHash 0.8): the same on every machine.
uint64_t checksum64(std::span<const std::byte> bytes, uint64_t seed = 0);
// The same, and copies the bytes to `to` in the same pass; the two do not overlap.
uint64_t copy_with_checksum64(std::byte* to, std::span<const std::byte> bytes, uint64_t seed = 0);

}  // namespace retort

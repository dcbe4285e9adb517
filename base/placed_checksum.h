// A checksum of a file that can be taken in parts, by whoever reads or writes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace retort {

// What `bytes` add to the checksum of a file in which they stand at `offset`. That of a range of
// the file is the sum, modulo 2^64, over any cut of it into parts, in any order; bytes that are 0
// add nothing, so that the number of bytes is to be compared beside it.
//
// The sum over 32-bit words, each times an odd number that follows from its place. So one word that
// changes always shows, anything else but once in 2^31 (multilinear hashing: D. Lemire, O. Kaser,
// "Strongly universal string hashing is fast", 2014). It is no defence against an attacker, whom
// the numbers are known to.
uint64_t placed_checksum64(std::span<const std::byte> bytes, uint64_t offset);
// What a copy is written to. Memory that was used before goes past the processor's caches, which
// would read it first; into new memory the kernel has just written zeros, which are in them.
enum class CopyTo { kNewMemory, kUsedMemory };
// The same, and copies the bytes to `to` in the same pass. The two do not overlap.
uint64_t copy_with_placed_checksum64(std::byte* to, std::span<const std::byte> bytes,
                                     uint64_t offset, CopyTo kind);

}  // namespace retort

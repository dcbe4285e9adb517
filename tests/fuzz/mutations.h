// Changes that a fuzzer makes to an input, from a number: the same ones everywhere.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace retort::fuzz {

// `bytes` after one to four changes: bits, bytes, whole numbers of extreme values, parts cut out,
// doubled, or taken from `other`. At most 64 bytes longer. Without the input of a fuzzer's coverage
// it only finds what lies near.
std::string mutated(std::string_view bytes, std::string_view other, uint64_t seed);

}  // namespace retort::fuzz

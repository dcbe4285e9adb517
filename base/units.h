// Durations and sizes as people write them in recipes: "120s", "5m", "250ms", "20us", "2GiB",
// "64MiB", "1000000".
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace retort {

// A size in bytes; its own type so that a recipe field knows how to parse itself.
struct ByteSize {
  uint64_t bytes = 0;
  auto operator<=>(const ByteSize&) const = default;
};

using Duration = std::chrono::milliseconds;
// The duration of waits too short for the above: "20us", "1ms".
using ShortDuration = std::chrono::microseconds;

// kInvalidArgument with the accepted units if the text is not one, or above 1000000h or 8192TiB.
Duration parse_duration(std::string_view text);
// kInvalidArgument if the text is not one, or above 1s.
ShortDuration parse_short_duration(std::string_view text);
ByteSize parse_byte_size(std::string_view text);
// The shortest exact text, e.g. "120s", "2GiB".
std::string format_duration(Duration duration);
std::string format_short_duration(ShortDuration duration);
std::string format_byte_size(ByteSize size);

}  // namespace retort

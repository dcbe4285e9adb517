#include "base/units.h"

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/sizes.h"

namespace retort {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

constexpr std::array<Unit, 4> kTimeUnits{{{"h", 3600e3}, {"m", 60e3}, {"s", 1e3}, {"ms", 1}}};
constexpr std::array<Unit, 3> kShortTimeUnits{{{"s", 1e6}, {"ms", 1e3}, {"us", 1}}};
constexpr std::array<Unit, 9> kSizeUnits{{{"TiB", 1099511627776.0},
                                          {"GiB", 1073741824.0},
                                          {"MiB", 1048576.0},
                                          {"KiB", 1024.0},
                                          {"TB", 1e12},
                                          {"GB", 1e9},
                                          {"MB", 1e6},
                                          {"KB", 1e3},
                                          {"B", 1}}};

// With this bound a point in time that far from now can still be counted in nanoseconds.
constexpr double kMaxMilliseconds = 1e6 * 3600e3;
constexpr double kMaxMicroseconds = 1e6;
// Every whole number up to here is exact in a double.
constexpr double kMaxSize = 9007199254740992.0;

// Returns the number at the start of `text` and the unit behind it; a number of -1 if there is
// none.
std::pair<double, std::string_view> split(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0 || !std::isfinite(value)) return {-1, {}};
  std::string_view unit = text.substr(to_size(end - text.data()));
  while (!unit.empty() && unit.front() == ' ')
    unit.remove_prefix(1);
  return {value, unit};
}

}  // namespace

Duration parse_duration(std::string_view text) {
  const auto [value, unit] = split(text);
  if (value >= 0)
    for (const auto& [name, factor] : kTimeUnits)
      if (unit == name && value * factor <= kMaxMilliseconds)
        return Duration(static_cast<int64_t>(std::llround(value * factor)));
  throw Error(ErrorCode::kInvalidArgument,
              "'" + std::string(text) +
                  "' is not a duration; write a number and a unit: 250ms, 120s, 5m, 2h, at most "
                  "1000000h");
}

ShortDuration parse_short_duration(std::string_view text) {
  const auto [value, unit] = split(text);
  if (value >= 0)
    for (const auto& [name, factor] : kShortTimeUnits)
      if (unit == name && value * factor <= kMaxMicroseconds)
        return ShortDuration(static_cast<int64_t>(std::llround(value * factor)));
  throw Error(
      ErrorCode::kInvalidArgument,
      "'" + std::string(text) +
          "' is not a short duration; write a number and a unit: 0us, 20us, 1ms, at most 1s");
}

ByteSize parse_byte_size(std::string_view text) {
  const auto [value, unit] = split(text);
  if (value >= 0) {
    if (unit.empty() && value <= kMaxSize) return {static_cast<uint64_t>(value)};
    for (const auto& [name, factor] : kSizeUnits)
      if (unit == name && value * factor <= kMaxSize)
        return {static_cast<uint64_t>(value * factor)};
  }
  throw Error(
      ErrorCode::kInvalidArgument,
      "'" + std::string(text) +
          "' is not a size; write a number and a unit: 512KiB, 64MiB, 2GiB, at most 8192TiB");
}

std::string format_duration(Duration duration) {
  const int64_t ms = duration.count();
  for (const auto& [name, factor] : kTimeUnits)
    if (ms % static_cast<int64_t>(factor) == 0 && ms != 0)
      return std::to_string(ms / static_cast<int64_t>(factor)) + std::string(name);
  return std::to_string(ms) + "ms";
}

std::string format_short_duration(ShortDuration duration) {
  const int64_t us = duration.count();
  for (const auto& [name, factor] : kShortTimeUnits)
    if (us % static_cast<int64_t>(factor) == 0 && us != 0)
      return std::to_string(us / static_cast<int64_t>(factor)) + std::string(name);
  return std::to_string(us) + "us";
}

std::string format_byte_size(ByteSize size) {
  // The binary units come first in the table; the decimal ones are for reading only.
  for (size_t i = 0; i < 4; ++i) {
    const auto factor = static_cast<uint64_t>(kSizeUnits[i].factor);
    if (size.bytes != 0 && size.bytes % factor == 0)
      return std::to_string(size.bytes / factor) + std::string(kSizeUnits[i].name);
  }
  return std::to_string(size.bytes) + "B";
}

}  // namespace retort

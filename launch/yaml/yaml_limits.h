// How much a YAML text may be, so that reading one that means ill takes neither time nor memory.
#pragma once

#include <cstdint>
#include <string_view>

namespace retort::launch {

inline constexpr int kMaxYamlDepth = 32;
// Each use of an anchor counts all that it stands for.
inline constexpr int64_t kMaxYamlNodes = 100'000;
// Keys and values together, with aliases and variables written out.
inline constexpr uint64_t kMaxYamlBytes = uint64_t{1} << 20;
// The text of a file: what it says within the limits above, indented and escaped, fits.
inline constexpr uint64_t kMaxYamlTextBytes = 8 * kMaxYamlBytes;

// The line, from 0, in which `text` comes to more than 2 * kMaxYamlNodes keys and values, aliases
// not written out; -1 if it does not. Keeps nothing of them in memory, as a parser's tree does.
// YAML::Exception where the text is not valid.
int line_of_too_many_nodes(std::string_view text);

}  // namespace retort::launch

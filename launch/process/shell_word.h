// Text as a shell reads it back.
#pragma once

#include <string>

namespace retort::launch {

// The text as one word of a shell's command line, in quotes if it holds anything that a shell may
// read.
std::string shell_word(const std::string& text);

}  // namespace retort::launch

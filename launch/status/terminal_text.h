// Pieces of what a person reads in a terminal.
#pragma once

#include <chrono>
#include <string>

namespace retort::launch {

// The part of UTF-8 text that fits, counted in characters; control characters, which would move the
// cursor, become '?'.
std::string cut_to_columns(std::string text, int columns);
// "[====>     ]": `fraction` of `width` characters, brackets not counted.
std::string progress_bar(double fraction, int width);
// "1h02m", "1m05s", "12s"; "0s" for a negative time.
std::string short_time(std::chrono::seconds time);
// The width of the terminal that `fd` is; 80 if it is none.
int terminal_columns(int fd);

}  // namespace retort::launch

// Text of strangers (a server, another host, a file's name) that people read in a terminal or log.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace retort {

// True if all of it is UTF-8: no cut or overlong character, no surrogate, none above U+10FFFF.
bool is_utf8(std::string_view text);
// How many bytes of it are, from its beginning on.
size_t utf8_prefix(std::string_view text);

enum class LineEnds { kEscaped, kKept };

// The text with what would act on a terminal, or forge a line of a log, written as an escape: \x1b
// for control characters (C0, DEL, C1) and for bytes that are no UTF-8, \n, \r and \t. kKept: ends
// of lines and tabs stay as they are.
std::string printable(std::string_view text, LineEnds line_ends = LineEnds::kEscaped);

// Appends the escape of one byte, whatever it is: \n, \r, \t, \x41.
void append_escape(std::string& to, char c);

}  // namespace retort

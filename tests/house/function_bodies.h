// The rules of the house about functions: how long one is, and that a long body falls into
// paragraphs.
#pragma once

#include <string>
#include <vector>

#include "tests/house/sources.h"
#include "tests/house/text_rules.h"

namespace retort::house {

// The lines of a function's braces, counted from 0. A lambda belongs to the function around it.
struct FunctionBody {
  size_t first, last;
  // Lines inside that are an initialiser in braces: a table has no paragraphs.
  size_t table_lines;
  // What stands before the brace, without comments, on one line.
  std::string head;

  // The lines between the braces.
  size_t lines() const { return last > first ? last - first - 1 : 0; }
};

// The functions of C++ lines that are set as clang-format sets them. A matcher of braces, not a
// parser: what a macro hides it does not see.
std::vector<FunctionBody> find_function_bodies(const std::vector<std::string>& lines);

// A body of more than 40 lines, tables apart, has a blank line.
void check_paragraphs(const Source& source, const Report& report);

// A body has at most 60 lines, tables apart, and apart from `fields()`, which is the table of a
// struct's keys. A kernel (.cuh) may have more: it is one body for what it keeps in registers and
// shared memory.
void check_length(const Source& source, const Report& report);

}  // namespace retort::house

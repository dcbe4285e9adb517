// The rules of the house about text, whatever the language: how wide a line is, and what it cites.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "tests/house/sources.h"

namespace retort::house {

// Called with the line, counted from 1, and what is wrong there.
using Report = std::function<void(size_t line, const std::string& what)>;

// 100 columns in code and 120 in documents. A line that is nothing but an address may be longer,
// and so may a row of the tables of docs/recipe.md, which a program writes.
void check_width(const Source& source, const Report& report);

// A document that is cited exists: a path below docs/ that ends with .md names a file, and no line
// cites a section of the design documents, which are not in the repository.
void check_citations(const Source& source, const std::filesystem::path& root, const Report& report);

}  // namespace retort::house

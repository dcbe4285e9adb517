// The files that the rules of the house look at, as lines.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace retort::house {

struct Source {
  std::filesystem::path path;  // relative to the root
  std::vector<std::string> lines;
};

// Called with a file, a line of it, counted from 1, and what is wrong there.
using ReportAt =
    std::function<void(const std::filesystem::path& path, size_t line, const std::string& what)>;

// Programs and scripts of every language, and CMake's files; what a build or an interpreter wrote
// is left out.
std::vector<Source> read_sources(const std::filesystem::path& root);

// README.md and what lies under docs/.
std::vector<Source> read_documents(const std::filesystem::path& root);

bool is_cxx(const std::filesystem::path& path);
bool is_header(const std::filesystem::path& path);
bool is_document(const std::filesystem::path& path);

std::vector<std::string> split_lines(std::string_view text);

}  // namespace retort::house

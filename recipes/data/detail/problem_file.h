// Files of made problems, which are numbered: what all kinds of them share.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace retort::data::detail {

// kInvalidArgument unless [first, first + count) are problems of the `size` that there are.
void check_problem_range(int64_t first, int64_t count, int64_t size);

// kInvalidArgument unless 0 to 100; the error begins with `what` there is in so many percent.
void check_share(const std::string& what, int percent);

// Whether `percent` of a hundred problems in turn, spread evenly, have this one among them.
bool is_in_share(int64_t index, int percent);

// Writes what `row` says for each problem of that range as a line of its own, atomically. Errors as
// check_problem_range() and base/file.h; nothing is written then.
void write_problem_file(const std::filesystem::path& file, int64_t first, int64_t count,
                        int64_t size, const std::function<std::string(int64_t index)>& row);

}  // namespace retort::data::detail

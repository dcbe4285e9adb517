#include "recipes/data/detail/problem_file.h"

#include "base/error.h"
#include "base/file.h"

namespace retort::data::detail {

void check_problem_range(int64_t first, int64_t count, int64_t size) {
  if (first < 0 || count < 0 || first > size || count > size - first)
    throw Error(ErrorCode::kInvalidArgument,
                "problems " + std::to_string(first) + " to " + std::to_string(first) + " + " +
                    std::to_string(count) + " were asked for; there are " + std::to_string(size));
}

void check_share(const std::string& what, int percent) {
  if (percent < 0 || percent > 100)
    throw Error(ErrorCode::kInvalidArgument,
                what + " in " + std::to_string(percent) +
                    " percent of the rows were asked for; expected 0 to 100");
}

bool is_in_share(int64_t index, int percent) { return index % 100 * percent % 100 < percent; }

void write_problem_file(const std::filesystem::path& file, int64_t first, int64_t count,
                        int64_t size, const std::function<std::string(int64_t index)>& row) {
  check_problem_range(first, count, size);
  AtomicFile out(file);
  for (int64_t index = first; index < first + count; ++index)
    out.write(row(index) + "\n");
  out.commit();
}

}  // namespace retort::data::detail

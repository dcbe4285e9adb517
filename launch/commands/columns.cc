#include "launch/commands/columns.h"

#include "base/error.h"

namespace retort::launch {

std::map<std::string, std::string> parse_columns(const Columns& pairs) {
  std::map<std::string, std::string> columns;
  for (const std::string& pair : pairs) {
    const auto equals = pair.find('=');
    if (equals == std::string::npos || equals == 0)
      throw Error(ErrorCode::kInvalidArgument,
                  "--columns '" + pair + "': write canonical=column, e.g. prompt=question");
    columns[pair.substr(0, equals)] = pair.substr(equals + 1);
  }
  return columns;
}

}  // namespace retort::launch

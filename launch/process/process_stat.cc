#include "launch/process/process_stat.h"

#include <sstream>
#include <string>

namespace retort::launch {

std::optional<ProcessStat> read_process_stat(std::istream& file) {
  // The file is read by read(), which says that nothing came where an iterator of the buffer would
  // throw.
  std::string text(4096, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  // The name stands in parentheses and may hold some itself, so the last one ends it.
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;

  std::istringstream rest(text.substr(name_end + 1));
  std::string state;
  ProcessStat stat;
  if (rest >> state >> stat.parent >> stat.group) return stat;
  return std::nullopt;
}

}  // namespace retort::launch

#include "tests/parallel/stand_in/start.h"

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "base/sizes.h"

namespace retort::test {

std::string StandInMember::rank_at(int other) const {
  return "rank " + std::to_string(ranks.at(to_size(other)));
}

std::string StandInMember::others() const {
  std::string text;
  for (int other = 0; other < to_int(ranks.size()); ++other)
    if (other != position) text += (text.empty() ? "" : ", ") + rank_at(other);
  return text;
}

std::string Start::what() const {
  return operation + " of " + std::to_string(bytes) + " bytes of " + dtype;
}

// A line for each field, then one for each group, an empty one, and the data.
std::string Start::to_text() const {
  std::ostringstream text;
  text << number << '\n' << operation << '\n' << bytes << '\n' << dtype << '\n';
  for (const auto& [key, count] : before)
    text << count << ' ' << key << '\n';
  text << '\n' << data;
  return text.str();
}

Start start_from_text(const std::string& text) {
  std::istringstream in(text);
  std::string line;
  Start start;
  in >> start.number >> std::ws;
  std::getline(in, start.operation);
  in >> start.bytes >> std::ws;
  std::getline(in, start.dtype);

  while (std::getline(in, line) && !line.empty()) {
    const size_t space = line.find(' ');
    start.before[line.substr(space + 1)] = std::stoull(line.substr(0, space));
  }
  RETORT_CHECK(in.good()) << "a start is cut";
  start.data = text.substr(static_cast<size_t>(in.tellg()));
  return start;
}

std::string operation_text(const StandInMember& member, const Start& start) {
  return "operation " + std::to_string(start.number) + " of " + member.name + " (" + start.what() +
         ")";
}

std::optional<std::string> difference(const StandInMember& member, const Start& mine, int position,
                                      const Start& theirs,
                                      const std::map<std::string, StandInMember>& groups) {
  const std::string other = member.rank_at(position);
  if (mine.what() != theirs.what())
    return "operation " + std::to_string(mine.number) + " of " + member.name +
           " differs between its ranks: " + member.rank() + " started " + mine.what() + ", " +
           other + " " + theirs.what();

  // A group that only one of the two processes is in has no order between them.
  for (const auto& [key, count] : mine.before) {
    const auto found = theirs.before.find(key);
    const auto group = groups.find(key);
    if (found == theirs.before.end() || group == groups.end() || found->second == count) continue;
    const bool mine_first = count > found->second;
    return "the order of starts differs: with " + operation_text(member, mine) + " " +
           (mine_first ? member.rank() : other) + " had started operation " +
           std::to_string(std::max(count, found->second)) + " of " + group->second.name +
           " before, and " + (mine_first ? other : member.rank()) + " had not";
  }
  return std::nullopt;
}

}  // namespace retort::test

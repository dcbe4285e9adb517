#include "parallel/layout.h"

#include "base/sizes.h"

namespace retort::parallel {
namespace {

void check_size(const char* field, int64_t value) {
  if (value >= 1) return;
  throw Error(ErrorCode::kInvalidArgument, std::string("world.") + field + " is " +
                                               std::to_string(value) +
                                               ", expected a whole number of at least 1");
}

// An option that changes nothing is a mistake in the recipe.
void check_effect(bool is_default, const char* field, const char* axis, int64_t size) {
  if (is_default || size > 1) return;
  throw Error(ErrorCode::kInvalidArgument, std::string("world.") + field +
                                               " has no effect with world." + axis +
                                               " 1; remove it or set " + axis + " to 2 or more");
}

// A set of axes.
struct Axes {
  bool tp = false;
  bool dp = false;
  bool pp = false;
};

Axes parse_axes(std::string_view text) {
  Axes axes;
  std::string_view rest = text;
  while (true) {
    const size_t dash = rest.find('-');
    const std::string_view name = rest.substr(0, dash);
    bool* axis = nullptr;
    if (name == "tp") axis = &axes.tp;
    if (name == "dp") axis = &axes.dp;
    if (name == "pp") axis = &axes.pp;
    if (axis == nullptr || *axis)
      throw Error(ErrorCode::kInvalidArgument,
                  "'" + std::string(text) +
                      "' names no set of axes: expected tp, dp and pp, each at most once, joined "
                      "by '-' (\"tp\", \"dp-tp\")");
    *axis = true;
    if (dash == std::string_view::npos) return axes;
    rest.remove_prefix(dash + 1);
  }
}

}  // namespace

void Layout::validate() const {
  check_size("tp", tp);
  check_size("pp", pp);
  check_size("dp", dp);

  // Each factor is checked alone first, so that the products cannot overflow.
  constexpr int64_t kMaxRanks = 1 << 20;
  if (tp > kMaxRanks || pp > kMaxRanks || dp > kMaxRanks || tp * pp > kMaxRanks ||
      tp * pp * dp > kMaxRanks)
    throw Error(ErrorCode::kInvalidArgument, "world.tp * world.pp * world.dp is more than " +
                                                 std::to_string(kMaxRanks) +
                                                 " ranks; choose smaller sizes")
        .with("tp", tp)
        .with("pp", pp)
        .with("dp", dp);

  check_size("virtual_pp", virtual_pp);
  check_effect(!sequence_parallel, "sequence_parallel", "tp", tp);
  check_effect(virtual_pp == 1, "virtual_pp", "pp", pp);
  check_effect(!distributed_optimizer, "distributed_optimizer", "dp", dp);
  if (threads < 0)
    throw Error(ErrorCode::kInvalidArgument,
                "world.threads is " + std::to_string(threads) +
                    ", expected 0 (cores / processes on the host) or more");
}

Coordinate coordinate_of(const Layout& layout, int64_t rank) {
  if (rank < 0 || rank >= layout.world_size())
    throw Error(ErrorCode::kInvalidArgument, "rank " + std::to_string(rank) +
                                                 " is outside of a world of " +
                                                 std::to_string(layout.world_size()) + " ranks");
  return {.tp = rank % layout.tp,
          .dp = rank / layout.tp % layout.dp,
          .pp = rank / (layout.tp * layout.dp)};
}

int64_t rank_of(const Layout& layout, Coordinate c) {
  if (c.tp < 0 || c.tp >= layout.tp || c.dp < 0 || c.dp >= layout.dp || c.pp < 0 ||
      c.pp >= layout.pp)
    throw Error(ErrorCode::kInvalidArgument, "coordinate outside of the layout")
        .with("tp", c.tp)
        .with("dp", c.dp)
        .with("pp", c.pp);
  return c.tp + layout.tp * (c.dp + layout.dp * c.pp);
}

std::vector<std::vector<int>> rank_groups(const Layout& layout, std::string_view axes_text) {
  layout.validate();
  const Axes axes = parse_axes(axes_text);

  // Ranks that agree on every axis that is not named form a group. A key numbers what they agree
  // on; -1 marks a key whose group has not begun.
  const int64_t num_keys =
      (axes.tp ? 1 : layout.tp) * (axes.dp ? 1 : layout.dp) * (axes.pp ? 1 : layout.pp);
  std::vector<int> group_of_key(to_size(num_keys), -1);

  // Walking the ranks upwards orders the groups and the ranks of each.
  std::vector<std::vector<int>> groups;
  for (int64_t rank = 0; rank < layout.world_size(); ++rank) {
    const Coordinate c = coordinate_of(layout, rank);
    int64_t key = axes.pp ? 0 : c.pp;
    if (!axes.dp) key = key * layout.dp + c.dp;
    if (!axes.tp) key = key * layout.tp + c.tp;
    int& group = group_of_key[to_size(key)];
    if (group < 0) {
      group = to_int(groups.size());
      groups.emplace_back();
    }
    groups[to_size(group)].push_back(to_int(rank));
  }
  return groups;
}

std::vector<std::vector<int>> embedding_groups(const Layout& layout) {
  std::vector<std::vector<int>> groups;
  for (const std::vector<int>& pipeline : rank_groups(layout, "pp")) {
    groups.push_back({pipeline.front()});
    if (pipeline.size() > 1) groups.back().push_back(pipeline.back());
  }
  return groups;
}

}  // namespace retort::parallel

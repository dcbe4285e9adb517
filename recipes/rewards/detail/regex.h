// Patterns of PCRE2 with limits: one that backtracks without end is an error, not a hang or an
// overflow.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace retort::rewards::detail {

// Threads: one at a time.
class Regex {
 public:
  // `whole`: it must match all of a text, and its dots match newlines. kInvalidArgument naming the
  // reward, with the place of the mistake.
  Regex(std::string reward, std::string pattern, bool whole);
  ~Regex();

  int num_groups() const;

  // True if it is found anywhere in `text`. kResourceExhausted naming `what` the text is when it
  // takes too long.
  bool matches(std::string_view text, const std::string& what) const;
  // The first group of the last place that a search from the beginning finds; nullopt: there is no
  // place, or the group took no part in it. Errors as matches().
  std::optional<std::string_view> find_last(std::string_view text, const std::string& what) const;

 private:
  // The end of a match, and its first group.
  struct Place {
    size_t end = 0;
    std::optional<std::string_view> group;
  };
  std::optional<Place> find(std::string_view text, size_t from, const std::string& what) const;
  struct Compiled;
  std::string reward_, pattern_;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace retort::rewards::detail

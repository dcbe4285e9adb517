// Patterns of PCRE2 with limits: one that backtracks without end is an error, not a hang or an
// overflow.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace retort::rewards::detail {

class Regex {
 public:
  // `whole`: it must match all of a text, and its dots match newlines. kInvalidArgument naming the
  // reward, with the place of the mistake.
  Regex(std::string reward, std::string pattern, bool whole);
  ~Regex();

  int num_groups() const;

  struct Match {
    // the first group, if there is one and it took part
    std::optional<std::string_view> group;
  };
  // The first place in `text`; nullopt: none. kResourceExhausted naming `what` the text is when it
  // takes too long.
  std::optional<Match> find(std::string_view text, const std::string& what) const;

 private:
  struct Compiled;
  std::string reward_, pattern_;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace retort::rewards::detail

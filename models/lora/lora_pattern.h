// The regular expression that PEFT's target_modules may be. Private to models/.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace retort::models {

// PCRE2's syntax, which is Python's where names of layers are concerned, with a limit on its steps.
// Threads: one at a time.
class LoraPattern {
 public:
  // kInvalidArgument naming target_modules, with the place of the mistake, for what is no pattern
  // or longer than 1,000 characters.
  explicit LoraPattern(std::string pattern);
  ~LoraPattern();

  // True when it matches all of the name (Python's re.fullmatch). kInvalidArgument if that takes
  // too many steps.
  bool matches(std::string_view name) const;

 private:
  struct Compiled;
  std::string pattern_;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace retort::models

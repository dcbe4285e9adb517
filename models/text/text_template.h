// Texts with places to be filled in (Jinja), through the Rust crate `minijinja`.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace retort::models {

// Threads: any at once.
class TextTemplate {
 public:
  // `names`: of all values that there may be; `origin`: its file, for messages. kInvalidArgument
  // with Jinja's line for a bad template, and for one that uses another name.
  TextTemplate(const std::string& source, const std::vector<std::string>& names,
               std::string origin);

  // `variables_json`: an object of named values. One that is not there is an error where it is
  // printed, not an empty place, but may be asked for (`{% if reference %}`). kInvalidArgument with
  // its line.
  std::string render(std::string_view variables_json) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace retort::models

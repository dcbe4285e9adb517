// Texts with places to be filled in (Jinja), through the Rust crate `minijinja`.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace retort::models {

// Threads: any at once.
class TextTemplate {
 public:
  // `origin`: its file, for messages. kInvalidArgument with Jinja's line for a bad template.
  TextTemplate(const std::string& source, std::string origin);

  // `variables_json`: an object of named values. A name that is none of them is an error, not an
  // empty place, but may be asked for (`{% if reference %}`). kInvalidArgument with its line.
  std::string render(std::string_view variables_json) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace retort::models

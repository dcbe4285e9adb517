#include "engines/wire/answer_status.h"

#include <charconv>

namespace retort::engines {

int status_of(const Error& error) {
  for (const auto& [key, value] : error.context())
    if (key == "status") return static_cast<int>(number_after(value, "").value_or(0));
  return 0;
}

std::optional<int64_t> number_after(std::string_view text, std::string_view before) {
  const size_t at = text.find(before);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view rest = text.substr(at + before.size());
  int64_t number = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  return number;
}

Error with_advice(const Error& error, ErrorCode code, const std::string& advice) {
  return Error(code, advice + ": " + error.message(), error.origin(), error.context());
}

}  // namespace retort::engines

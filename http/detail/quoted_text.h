// What strangers wrote, for error messages.
#pragma once

#include <string>
#include <string_view>

namespace retort::http::detail {

// The first 200 characters in quotes, everything but printable ASCII escaped: \n, \x1b. "nothing"
// without quotes if there are none. "***" stands wherever `secret` does; empty: there is none.
std::string shown(std::string_view text, std::string_view secret = {});
// `text` with "***" wherever it has `secret`, unless that is empty.
std::string without(std::string_view secret, std::string text);

}  // namespace retort::http::detail

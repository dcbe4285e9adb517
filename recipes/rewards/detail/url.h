// The parts of an http address.
#pragma once

#include <string>

namespace retort::rewards::detail {

struct Url {
  std::string host, port, target;  // "localhost" or "::1", "80", "/score?x=1"
  std::string host_header;         // "localhost:8000", "[::1]:8000"
};
// http://HOST[:PORT][/PATH[?QUERY]]; HOST may be [IPv6]. kInvalidArgument for anything else; https
// says that there is none.
Url parse_url(const std::string& text);

}  // namespace retort::rewards::detail

// The parts of an http address.
#pragma once

#include <string>

namespace retort::http {

struct Url {
  std::string host;         // "localhost", or "::1" without its brackets
  std::string port;         // "80"
  std::string target;       // "/score?x=1"
  std::string host_header;  // "localhost:8000", "[::1]:8000"
};
// http://HOST[:PORT][/PATH[?QUERY]]; HOST may be [IPv6]. kInvalidArgument for anything else; for
// https the error says that it is not supported.
Url parse_url(const std::string& text);

}  // namespace retort::http

#include "recipes/rewards/detail/url.h"

#include <algorithm>

#include "base/error.h"

namespace retort::rewards::detail {
namespace {

bool is_port(const std::string& text) {
  if (text.empty() || text.size() > 5 ||
      !std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; }))
    return false;
  const int port = std::stoi(text);
  return port >= 1 && port <= 65535;
}

}  // namespace

Url parse_url(const std::string& text) {
  const auto refuse = [&](const std::string& why) -> void {
    throw Error(ErrorCode::kInvalidArgument,
                "rewards: url '" + text + "': " + why + "; expected http://HOST[:PORT][/PATH]");
  };
  if (text.starts_with("https://"))
    refuse("https is not supported (put a local proxy in front of the service)");
  if (!text.starts_with("http://")) refuse("does not begin with http://");
  const auto odd = [](char c) {
    return static_cast<unsigned char>(c) <= ' ' || c == 0x7f || c == '#';
  };
  if (std::any_of(text.begin(), text.end(), odd))
    refuse("holds white space, a control character or '#'");
  const std::string rest = text.substr(7);
  const size_t path = std::min(rest.find_first_of("/?"), rest.size());
  const std::string authority = rest.substr(0, path);
  Url url{.port = "80", .target = rest.substr(path), .host_header = authority};
  if (!url.target.starts_with('/')) url.target.insert(size_t{0}, size_t{1}, '/');
  if (authority.find('@') != std::string::npos)
    refuse("names a user; credentials do not belong into a recipe");
  std::string port;
  if (authority.starts_with('[')) {
    const size_t end = authority.find(']');
    if (end == std::string::npos) refuse("the address in brackets does not end");
    url.host = authority.substr(1, end - 1);
    port = authority.substr(end + 1);
  } else {
    const size_t colon = authority.find(':');
    url.host = authority.substr(0, colon);
    if (colon != std::string::npos) port = authority.substr(colon);
  }
  if (url.host.empty()) refuse("names no host");
  if (!port.empty()) {
    url.port = port.substr(1);
    if (port.front() != ':' || !is_port(url.port))
      refuse("the port is not a number from 1 to 65535");
  }
  return url;
}

}  // namespace retort::rewards::detail

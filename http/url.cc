#include "http/url.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"

namespace retort::http {
namespace {

constexpr std::string_view kScheme = "http://";

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument,
              "url '" + text + "': " + why + "; expected http://HOST[:PORT][/PATH]");
}

bool is_port(const std::string& text) {
  if (text.empty() || text.size() > 5 ||
      !std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; }))
    return false;
  const int port = std::stoi(text);
  return port >= 1 && port <= 65535;
}

// White space, a control character or the start of a fragment.
bool is_odd(char c) { return static_cast<unsigned char>(c) <= ' ' || c == 0x7f || c == '#'; }

void check_scheme(const std::string& text) {
  if (text.starts_with("https://"))
    refuse(text, "https is not supported (put a local proxy in front of the service)");
  if (!text.starts_with(kScheme)) refuse(text, "does not begin with http://");
}

// HOST[:PORT] into its two parts; the port keeps its colon and is empty if there is none.
struct Authority {
  std::string host;
  std::string port;
};
Authority split_authority(const std::string& authority, const std::string& text) {
  if (authority.starts_with('[')) {
    const size_t end = authority.find(']');
    if (end == std::string::npos) refuse(text, "the address in brackets does not end");
    return {authority.substr(1, end - 1), authority.substr(end + 1)};
  }
  const size_t colon = authority.find(':');
  if (colon == std::string::npos) return {authority, ""};
  return {authority.substr(0, colon), authority.substr(colon)};
}

}  // namespace

Url parse_url(const std::string& text) {
  check_scheme(text);
  if (std::any_of(text.begin(), text.end(), is_odd))
    refuse(text, "holds white space, a control character or '#'");

  // The path or the query begins the target, which always begins with a slash.
  const std::string rest = text.substr(kScheme.size());
  const size_t path = std::min(rest.find_first_of("/?"), rest.size());
  const std::string authority = rest.substr(0, path);
  Url url{.port = "80", .target = rest.substr(path), .host_header = authority};
  if (!url.target.starts_with('/')) url.target.insert(size_t{0}, size_t{1}, '/');
  if (authority.find('@') != std::string::npos)
    refuse(text, "names a user; credentials do not belong into a recipe");

  // Only a port that stands there replaces http's own.
  const auto [host, port] = split_authority(authority, text);
  if (host.empty()) refuse(text, "names no host");
  url.host = host;
  if (!port.empty()) {
    url.port = port.substr(1);
    if (port.front() != ':' || !is_port(url.port))
      refuse(text, "the port is not a number from 1 to 65535");
  }
  return url;
}

}  // namespace retort::http

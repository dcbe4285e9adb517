#include "http/url.h"

#include <algorithm>

#include "base/error.h"

namespace retort::http {
namespace {

constexpr std::string_view kPlain = "http://";
constexpr std::string_view kTls = "https://";

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument,
              "url '" + without_secrets(text) + "': " + why +
                  "; expected http://HOST[:PORT][/PATH] or https://HOST[:PORT][/PATH]");
}

bool is_port(const std::string& text) {
  if (text.empty() || text.size() > 5 ||
      !std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; }))
    return false;
  const int port = std::stoi(text);
  return port >= 1 && port <= 65535;
}

// True for white space, a control character or the start of a fragment.
bool is_odd(char c) { return static_cast<unsigned char>(c) <= ' ' || c == 0x7f || c == '#'; }

// The two parts of HOST[:PORT]; the port keeps its colon and is empty if there is none.
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
  const bool tls = text.starts_with(kTls);
  if (!tls && !text.starts_with(kPlain)) refuse(text, "does not begin with http:// or https://");
  if (std::any_of(text.begin(), text.end(), is_odd))
    refuse(text, "holds white space, a control character or '#'");

  // The path or the query begins the target, which always begins with a slash.
  const std::string rest = text.substr((tls ? kTls : kPlain).size());
  const size_t path = std::min(rest.find_first_of("/?"), rest.size());
  const std::string authority = rest.substr(0, path);
  Url url{.port = tls ? "443" : "80",
          .target = rest.substr(path),
          .host_header = authority,
          .tls = tls};
  if (!url.target.starts_with('/')) url.target.insert(size_t{0}, size_t{1}, '/');
  if (authority.find('@') != std::string::npos)
    refuse(text, "names a user; credentials do not belong into a recipe");

  // Only a port that stands there replaces the scheme's own.
  const auto [host, port] = split_authority(authority, text);
  if (host.empty()) refuse(text, "names no host");
  if (host.find('%') != std::string::npos || host.size() > 253)
    refuse(text, "the host is no name and no address (zones are not supported)");
  url.host = host;
  if (!port.empty()) {
    url.port = port.substr(1);
    if (port.front() != ':' || !is_port(url.port))
      refuse(text, "the port is not a number from 1 to 65535");
  }
  return url;
}

std::string Url::origin() const {
  const bool v6 = host.find(':') != std::string::npos;
  return std::string(tls ? kTls : kPlain) + (v6 ? "[" + host + "]" : host) + ":" + port;
}

std::string without_secrets(const std::string& text) {
  std::string shown = text.substr(0, text.find('?'));
  if (shown.size() < text.size()) shown += "?...";

  const size_t scheme = shown.find("://");
  const size_t begin = scheme == std::string::npos ? 0 : scheme + 3;
  const size_t at = shown.substr(0, shown.find('/', begin)).rfind('@');
  if (at != std::string::npos && at >= begin) shown.replace(begin, at - begin, "...");
  return shown;
}

std::string Url::shown() const {
  return without_secrets(std::string(tls ? kTls : kPlain) + host_header + target);
}

Url Url::below(std::string_view path) const {
  Url url = *this;
  url.target = target.substr(0, target.find('?'));
  while (url.target.ends_with('/'))
    url.target.pop_back();
  url.target += path;
  if (!url.target.starts_with('/')) url.target.insert(size_t{0}, size_t{1}, '/');
  return url;
}

}  // namespace retort::http

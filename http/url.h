// The parts of an address of a service.
#pragma once

#include <string>
#include <string_view>

namespace retort::http {

struct Url {
  std::string host;         // "localhost", or "::1" without its brackets
  std::string port;         // "80"; for https "443" where none stands
  std::string target;       // "/score?x=1"
  std::string host_header;  // "localhost:8000", "[::1]:8000"
  bool tls = false;         // https

  // "http://localhost:8000", always with the port: the server, whatever is asked of it.
  std::string origin() const;
  // The address for errors and logs: without the query, which may hold a secret.
  std::string shown() const;
  // The same server at `path` ("/v1/models") below this address's own path, without a query.
  Url below(std::string_view path) const;
};
// http://HOST[:PORT][/PATH[?QUERY]] or https://...; HOST may be [IPv6]. kInvalidArgument for
// anything else, also for an address with a user's name; the error shows no credentials.
Url parse_url(const std::string& text);
// Any address without what may be secret in it: a user's name and password, and the query.
std::string without_secrets(const std::string& text);

}  // namespace retort::http

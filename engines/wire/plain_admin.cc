#include "engines/wire/plain_admin.h"

#include <boost/asio/ip/address.hpp>
#include <cctype>

#include "base/error.h"

namespace retort::engines {

bool is_loopback(const http::Url& url) {
  std::string host = url.host;
  for (char& c : host)
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (host.ends_with('.')) host.pop_back();
  if (host == "localhost") return true;

  boost::system::error_code error;
  const auto address = boost::asio::ip::make_address(host, error);
  if (error) return false;
  if (address.is_v6() && address.to_v6().is_v4_mapped())
    return boost::asio::ip::make_address_v4(boost::asio::ip::v4_mapped, address.to_v6())
        .is_loopback();
  return address.is_loopback();
}

void refuse_plain_key(const http::Url& url, const std::string& key) {
  if (key.empty() || url.tls || is_loopback(url)) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      "url: " + url.origin() +
          " would get the key (api_key_env, api_key_file) over plain "
          "http, where everybody on the way reads it; use https:// or a tunnel to this host");
}

void refuse_plain_admin(const http::Url& url, bool allowed, const std::string& door) {
  if (allowed || url.tls || is_loopback(url)) return;
  throw Error(
      ErrorCode::kUnauthenticated,
      "allow_plain_admin: " + door + " is an administrative door, and " + url.origin() +
          " is reached over plain http off this host, where anybody can use it; use "
          "https:// or a tunnel to this host, or set allow_plain_admin: true if the network "
          "is yours alone");
}

}  // namespace retort::engines

#include "base/network_interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>
#include <system_error>

#include "base/error.h"

namespace retort {
namespace {

// An address without its text: 4 or 16 bytes in network order.
struct NumericAddress {
  std::array<unsigned char, 16> bytes{};
  int num_bytes = 0;

  bool is_link_local() const {
    return num_bytes == 16 && bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80;
  }
};

std::optional<NumericAddress> parse_numeric(std::string_view text) {
  const std::string plain(text.substr(0, text.find('%')));
  NumericAddress parsed;
  if (::inet_pton(AF_INET, plain.c_str(), parsed.bytes.data()) == 1) {
    parsed.num_bytes = 4;
    // A scope belongs to IPv6 alone.
    return plain.size() == text.size() ? std::optional(parsed) : std::nullopt;
  }
  if (::inet_pton(AF_INET6, plain.c_str(), parsed.bytes.data()) != 1) return std::nullopt;
  parsed.num_bytes = 16;
  return parsed;
}

bool is_loopback(const NumericAddress& address) {
  if (address.num_bytes == 4) return address.bytes[0] == 127;
  const bool zeros = std::all_of(address.bytes.begin(), address.bytes.end() - 1,
                                 [](unsigned char byte) { return byte == 0; });
  return zeros && address.bytes[15] == 1;
}

struct Subnet {
  NumericAddress base;
  int num_bits = 0;

  bool holds(const NumericAddress& address) const {
    if (address.num_bytes != base.num_bytes) return false;
    for (int bit = 0; bit < num_bits; ++bit) {
      const auto at = static_cast<size_t>(bit / 8);
      const int mask = 0x80 >> (bit % 8);
      if ((address.bytes[at] & mask) != (base.bytes[at] & mask)) return false;
    }
    return true;
  }
};

Subnet parse_subnet(std::string_view text, const std::vector<InterfaceAddress>& all) {
  const size_t slash = text.find('/');
  const auto base = parse_numeric(text.substr(0, slash));
  const std::string_view length = text.substr(slash + 1);
  int num_bits = -1;
  const auto read = std::from_chars(length.data(), length.data() + length.size(), num_bits);
  const bool whole = read.ec == std::errc() && read.ptr == length.data() + length.size();
  if (!base || !whole || num_bits < 0 || num_bits > base->num_bytes * 8)
    throw Error(ErrorCode::kInvalidArgument,
                "'" + std::string(text) +
                    "' is no subnet; write an address and a number of bits, such as 10.0.0.0/16; "
                    "this host has " +
                    interface_list(all));
  return {*base, num_bits};
}

[[noreturn]] void none_found(const std::string& what, const std::vector<InterfaceAddress>& all) {
  throw Error(ErrorCode::kUnavailable, what + "; this host has " + interface_list(all));
}

// The order in which the addresses of one interface are preferred.
int rank_of(const InterfaceAddress& one) {
  const auto address = parse_numeric(one.address);
  if (address && address->num_bytes == 4) return 0;
  return address && address->is_link_local() ? 2 : 1;
}

// The best of an interface's addresses; `candidates` are all of it.
InterfaceAddress best_of(std::vector<InterfaceAddress> candidates) {
  std::stable_sort(
      candidates.begin(), candidates.end(),
      [](const InterfaceAddress& a, const InterfaceAddress& b) { return rank_of(a) < rank_of(b); });
  return candidates.front();
}

bool is_of_one_interface(const std::vector<InterfaceAddress>& found) {
  return std::all_of(found.begin(), found.end(), [&](const InterfaceAddress& one) {
    return one.interface == found.front().interface;
  });
}

InterfaceAddress choose_by_address(std::string_view wanted,
                                   const std::vector<InterfaceAddress>& all) {
  const auto address = parse_numeric(wanted);
  std::string loopback = "lo";
  for (const InterfaceAddress& one : all) {
    const auto own = parse_numeric(one.address);
    if (!own) continue;
    if (is_loopback(*own)) loopback = one.interface;
    if (own->num_bytes != address->num_bytes || own->bytes != address->bytes) continue;
    if (!one.is_up)
      none_found("the interface of " + std::string(wanted) + ", " + one.interface + ", is down",
                 all);
    return {one.interface, std::string(wanted), true};
  }

  // All of 127.0.0.0/8 is this host's, although one address of it is listed.
  if (is_loopback(*address)) return {loopback, std::string(wanted), true};
  none_found("this host has no address " + std::string(wanted), all);
}

InterfaceAddress choose_by_subnet(std::string_view wanted,
                                  const std::vector<InterfaceAddress>& all) {
  const Subnet subnet = parse_subnet(wanted, all);
  std::vector<InterfaceAddress> found;
  for (const InterfaceAddress& one : all) {
    const auto own = parse_numeric(one.address);
    if (one.is_up && own && subnet.holds(*own)) found.push_back(one);
  }

  if (found.empty())
    none_found("no interface that is up has an address in " + std::string(wanted), all);
  if (!is_of_one_interface(found))
    throw Error(ErrorCode::kInvalidArgument,
                "several interfaces have an address in " + std::string(wanted) +
                    "; write the interface or the address; this host has " + interface_list(all));
  return best_of(std::move(found));
}

InterfaceAddress choose_by_name(std::string_view wanted, const std::vector<InterfaceAddress>& all) {
  std::vector<InterfaceAddress> found;
  for (const InterfaceAddress& one : all)
    if (one.interface == wanted) found.push_back(one);
  if (found.empty())
    none_found("this host has no interface '" + std::string(wanted) + "' with an address", all);
  if (!found.front().is_up) none_found("the interface " + std::string(wanted) + " is down", all);
  return best_of(std::move(found));
}

std::string to_text(const sockaddr* address, socklen_t size) {
  char text[NI_MAXHOST];
  if (::getnameinfo(address, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) return "";
  return text;
}

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList look_up(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failed != 0)
    throw Error(ErrorCode::kUnavailable,
                "the host '" + host + "' does not resolve: " + ::gai_strerror(failed));
  return {found, &freeaddrinfo};
}

// A socket that closes itself.
class Probe {
 public:
  explicit Probe(int family) : fd_(::socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {}
  ~Probe() {
    if (fd_ >= 0) ::close(fd_);
  }
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* head = nullptr;
  if (::getifaddrs(&head) != 0)
    throw Error(ErrorCode::kUnavailable,
                std::string("cannot list the interfaces of this host: ") + std::strerror(errno));
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(head, &freeifaddrs);

  std::vector<InterfaceAddress> all;
  for (const ifaddrs* one = list.get(); one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    const int family = one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const std::string text =
        to_text(one->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    if (!text.empty()) all.push_back({one->ifa_name, text, (one->ifa_flags & IFF_UP) != 0});
  }
  return all;
}

std::string interface_list(const std::vector<InterfaceAddress>& all) {
  std::string text;
  for (const InterfaceAddress& one : all) {
    text += (text.empty() ? "" : ", ") + one.interface + " " + one.address;
    if (!one.is_up) text += " (down)";
  }
  return text.empty() ? "no address" : text;
}

bool is_loopback_address(std::string_view address) {
  const auto parsed = parse_numeric(address);
  return parsed && is_loopback(*parsed);
}

bool is_loopback_host(std::string_view host) {
  return host == "localhost" || is_loopback_address(host);
}

bool is_numeric_address(std::string_view text) { return parse_numeric(text).has_value(); }

bool is_interface_choice(std::string_view wanted, const std::vector<InterfaceAddress>& all) {
  if (wanted.find('/') != std::string_view::npos || is_numeric_address(wanted)) return true;
  return std::any_of(all.begin(), all.end(),
                     [&](const InterfaceAddress& one) { return one.interface == wanted; });
}

InterfaceAddress choose_address(std::string_view wanted, const std::vector<InterfaceAddress>& all) {
  if (wanted.find('/') != std::string_view::npos) return choose_by_subnet(wanted, all);
  if (is_numeric_address(wanted)) return choose_by_address(wanted, all);
  return choose_by_name(wanted, all);
}

InterfaceAddress only_outer_address(const std::vector<InterfaceAddress>& all) {
  std::vector<InterfaceAddress> outer;
  for (const InterfaceAddress& one : all)
    if (one.is_up && !is_loopback_address(one.address) && rank_of(one) < 2) outer.push_back(one);
  if (outer.empty()) none_found("no interface that is up leads out of this host", all);
  if (!is_of_one_interface(outer))
    none_found("several interfaces lead out of this host; write the one to use", all);
  return best_of(std::move(outer));
}

std::vector<std::string> resolve_host(const std::string& host) {
  const AddressList list = look_up(host, 0);
  std::vector<std::string> addresses;
  for (const addrinfo* one = list.get(); one != nullptr; one = one->ai_next)
    if (std::string text = to_text(one->ai_addr, one->ai_addrlen); !text.empty())
      addresses.push_back(std::move(text));
  return addresses;
}

std::string address_towards(const std::string& host, uint16_t port) {
  std::string why = "no address";
  const AddressList list = look_up(host, port);
  for (const addrinfo* one = list.get(); one != nullptr; one = one->ai_next) {
    // Connecting a datagram socket only chooses the route.
    const Probe probe(one->ai_family);
    sockaddr_storage local{};
    socklen_t size = sizeof local;
    const bool routed = probe.get() >= 0 &&
                        ::connect(probe.get(), one->ai_addr, one->ai_addrlen) == 0 &&
                        ::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&local), &size) == 0;
    if (routed) return to_text(reinterpret_cast<sockaddr*>(&local), size);
    why = std::generic_category().message(errno);
  }
  throw Error(ErrorCode::kUnavailable, "no route to the host '" + host + "': " + why);
}

}  // namespace retort

// The addresses of this host, and which one a recipe means by an address, an interface or a subnet.
//
// Errors name every address that the host has, so that the next try is the right one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace retort {

// One address of this host.
struct InterfaceAddress {
  std::string interface;  // "eth0"
  std::string address;    // numeric: "10.0.0.1", "fd00::1", "fe80::1%eth0"
  bool is_up = true;

  bool operator==(const InterfaceAddress&) const = default;
};

// All of this host, IPv4 and IPv6. kUnavailable if the system does not tell.
std::vector<InterfaceAddress> interface_addresses();
// "lo 127.0.0.1, eth0 10.0.0.1, eth1 10.1.0.1 (down)".
std::string interface_list(const std::vector<InterfaceAddress>& all);

// True if a numeric address leads back to its own host: 127.0.0.0/8, ::1. False for a name.
bool is_loopback_address(std::string_view address);
// The same of what a user writes as a host, where "localhost" counts too.
bool is_loopback_host(std::string_view host);
// True if it is an address in numbers, with or without a scope ("fe80::1%eth0").
bool is_numeric_address(std::string_view text);

// The address of `all` that `wanted` means, a pure function:
//
//   "10.0.0.1", "::1"    that address; loopback addresses are every host's
//   "eth0"               of this interface: IPv4 before IPv6, link-local ones last
//   "10.0.0.0/16"        the one in this subnet
//
// Errors: kInvalidArgument for a subnet that is none, and where several interfaces have an address
//   in it; kUnavailable where the host has no such address or the interface is down. All of them
//   list what there is.
InterfaceAddress choose_address(std::string_view wanted, const std::vector<InterfaceAddress>& all);
// True if `wanted` is for choose_address(): in numbers, a subnet, or the name of an interface. All
// else is the name of a host.
bool is_interface_choice(std::string_view wanted, const std::vector<InterfaceAddress>& all);

// The address that others reach this host by, where nothing but the route is known: the only
// interface that is up and no loopback. kUnavailable where there is none or are several.
InterfaceAddress only_outer_address(const std::vector<InterfaceAddress>& all);

// Numeric addresses of a host name (or of an address in numbers), in the resolver's order.
// kUnavailable if it does not resolve.
std::vector<std::string> resolve_host(const std::string& host);

// The numeric address of the interface that routes to `host`. Sends nothing. kUnavailable if `host`
// does not resolve or no route leads there.
std::string address_towards(const std::string& host, uint16_t port);

}  // namespace retort

// Where the processes of a run listen on this host, and whether there are ports for them.
#include <utility>

#include "base/error.h"
#include "base/network_interfaces.h"
#include "launch/doctor/checks.h"
#include "rpc/listen_address.h"

namespace retort::launch::doctor {
namespace {

uint16_t store_port(const HostShare& share) {
  const int64_t port = share.recipe == nullptr ? 0 : share.recipe->launch.rendezvous.port;
  // Any port will do to ask for the way to a host.
  return static_cast<uint16_t>(port == 0 ? 9 : port);
}

std::string own_address(const HostShare& share) {
  return rpc::listen_address(share.bind, share.rendezvous, store_port(share));
}

// "at 10.0.0.1 (eth0), encrypted"
std::string at_address(const HostShare& share) {
  const auto all = interface_addresses();
  const InterfaceAddress chosen = choose_address(own_address(share), all);
  const rpc::Encryption encryption =
      rpc::settled_encryption(share.recipe->rpc.encryption, share.rendezvous);
  return "at " + chosen.address + " (" + chosen.interface + "), " +
         (encryption == rpc::Encryption::kAlways ? "encrypted" : "not encrypted");
}

}  // namespace

std::optional<Finding> check_address(const HostShare& share) {
  const std::string all = "this host has " + interface_list(interface_addresses());
  if (share.num_ranks() == 0) return fine(all);
  try {
    return fine("processes listen " + at_address(share) + "; " + all);
  } catch (const Error& error) {
    return problem(
        error.message(),
        "write the interface, subnet or address to use as rpc.bind or, of a host, as its "
        "address");
  }
}

std::optional<Finding> check_ports(const HostShare& share) {
  if (share.num_ranks() == 0) return std::nullopt;
  const rpc::RpcOptions& rpc = share.recipe->rpc;
  if (!rpc.num_ports()) return fine("any port that is free (rpc.port: 0)");

  const int64_t needed = share.num_ranks();
  const std::string address = own_address(share);
  const int64_t free = rpc::count_free_ports(rpc.port, address, needed);
  const std::string what = (free < needed ? std::to_string(free) : "enough") +
                           " free ports in rpc.port: " + rpc.port + " at " + address + ", for " +
                           std::to_string(needed) + " processes";
  if (free == needed) return fine(what);
  return problem(what, "choose a larger range, or end what listens there (ss -tlnp)");
}

std::optional<Finding> check_launcher_ports(const HostShare& share) {
  if (share.recipe == nullptr || !share.launches) return std::nullopt;
  const recipes::LaunchOptions& launch = share.recipe->launch;
  const std::string address =
      rpc::rendezvous_address(share.bind, share.rendezvous, store_port(share));
  const std::pair<std::string, int64_t> written[] = {
      {"rendezvous.port", launch.rendezvous.port},
      {"metrics_port", launch.metrics_port.value_or(0)}};
  std::string fixed;
  for (const auto& [key, port] : written) {
    if (port == 0) continue;
    const std::string what = "launch." + key + ": " + std::to_string(port);
    if (rpc::count_free_ports(std::to_string(port), address, 1) == 0)
      return problem(what + " at " + address + " cannot be listened at",
                     "choose another port, or end what listens there (ss -tlnp)");
    fixed += (fixed.empty() ? "" : ", ") + what;
  }
  if (fixed.empty()) return fine("the launcher takes any port that is free");
  return fine(fixed + " can be had at " + address);
}

}  // namespace retort::launch::doctor

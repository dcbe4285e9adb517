#include "rpc/options.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/sizes.h"
#include "rpc/detail/bind_address.h"
#include "rpc/detail/frames.h"
#include "rpc/flow/receive_budget.h"

namespace retort::rpc {
namespace {

constexpr Duration kUsualHeartbeat{1'000};
// A heartbeat both ways costs 66 us of a core.
constexpr Duration kHeartbeatOfAPeer{7};

void check_names(const char* field, const std::vector<std::string>& names,
                 std::vector<std::string_view> known) {
  if (names.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "rpc." + std::string(field) + " is empty; name at least one");
  std::set<std::string> seen;
  for (const auto& name : names) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      const auto nearest = nearest_name(name, known);
      std::string choices;
      for (auto k : known)
        choices += (choices.empty() ? "" : " | ") + std::string(k);
      throw Error(ErrorCode::kInvalidArgument,
                  "rpc." + std::string(field) + ": '" + name + "' is not one of " + choices +
                      (nearest.empty() ? "" : "; did you mean '" + nearest + "'?"));
    }
    if (!seen.insert(name).second)
      throw Error(ErrorCode::kInvalidArgument,
                  "rpc." + std::string(field) + " names '" + name + "' twice");
  }
}

// TensorPipe's own are known by name, so that a recipe of before learns why they are gone.
void check_transports(const std::vector<std::string>& names) {
  for (const auto& name : names)
    if (name == "uv" || name == "shm" || name == "ibv")
      throw Error(ErrorCode::kInvalidArgument,
                  "rpc.transports: '" + name +
                      "' is refused: TensorPipe's listener reads what strangers send before they "
                      "have proved anything; use tcp, which needs no entry");
  check_names("transports", names, {"tcp"});
}

void check_positive(const char* field, int64_t value) {
  if (value <= 0)
    throw Error(ErrorCode::kInvalidArgument, "rpc." + std::string(field) + " must be above zero")
        .with("value", value);
}

// Sizes beyond 1 GiB are positive, whatever they are: the signed check takes them as 1 GiB.
void check_positive(const char* field, ByteSize size) {
  check_positive(field, to_int64(std::min<uint64_t>(size.bytes, 1u << 30)));
}

void check_device_map(const std::string& role, const std::map<std::string, int64_t>& map) {
  std::set<int64_t> remotes;
  for (const auto& [local, remote] : map) {
    const bool number =
        !local.empty() && local.size() < 6 &&
        std::all_of(local.begin(), local.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!number || remote < 0)
      throw Error(ErrorCode::kInvalidArgument,
                  "rpc.device_maps." + role + ": device indices are numbers from 0")
          .with("local", local)
          .with("remote", remote);
    if (!remotes.insert(remote).second)
      throw Error(ErrorCode::kInvalidArgument,
                  "rpc.device_maps." + role + " sends two devices to one; maps are one to one")
          .with("remote", remote);
  }
}

}  // namespace

uint64_t RpcOptions::window_bytes(int64_t num_peers) const {
  const uint64_t num_accounts = static_cast<uint64_t>(num_peers) * detail::kNumBulkKinds;
  const uint64_t window =
      detail::window_of(receive_budget.bytes, max_inflight_bytes.bytes, num_accounts);
  return std::min(window, max_message_bytes.bytes);
}

Duration RpcOptions::heartbeats(int64_t peers) const {
  if (heartbeat_interval) return *heartbeat_interval;
  const Duration for_all = std::min<Duration>(kHeartbeatOfAPeer * peers, peer_timeout / 2);
  return std::max(kUsualHeartbeat, for_all);
}

void RpcOptions::validate() const {
  check_transports(transports);
  (void)detail::parse_ports(port);
  check_names("channels", channels, {"cma", "basic"});
  if (std::find(channels.begin(), channels.end(), "basic") == channels.end())
    throw Error(ErrorCode::kInvalidArgument,
                "rpc.channels must include 'basic': it is what works where the others cannot");

  check_positive("timeout", timeout.count());
  if (queue_timeout) check_positive("queue_timeout", queue_timeout->count());
  const Duration heartbeat = heartbeats();
  check_positive("heartbeat_interval", heartbeat.count());
  check_positive("max_inflight_calls", max_inflight_calls);
  check_positive("max_inflight_bytes", max_inflight_bytes);
  check_positive("receive_budget", receive_budget);
  check_positive("max_message_bytes", max_message_bytes);
  if (peer_timeout < 2 * heartbeat)
    throw Error(ErrorCode::kInvalidArgument,
                "rpc.peer_timeout must be at least twice rpc.heartbeat_interval")
        .with("peer_timeout", format_duration(peer_timeout))
        .with("heartbeat_interval", format_duration(heartbeat));

  if (spin.count() < 0)
    throw Error(ErrorCode::kInvalidArgument, "rpc.spin must not be negative")
        .with("spin", format_short_duration(spin));
  if (spin >= heartbeat)
    throw Error(ErrorCode::kInvalidArgument,
                "rpc.spin must be below rpc.heartbeat_interval: with a heartbeat in every spin the "
                "thread would never sleep")
        .with("spin", format_short_duration(spin))
        .with("heartbeat_interval", format_duration(heartbeat));

  for (const auto& [role, map] : device_maps)
    check_device_map(role, map);
}

std::optional<int64_t> RpcOptions::num_ports() const {
  const transport::PortRange range = detail::parse_ports(port);
  if (range.first == 0) return std::nullopt;
  return int64_t{range.last} - range.first + 1;
}

}  // namespace retort::rpc

#include "launch/plan/plan_json.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <vector>

#include "base/json_text.h"

namespace retort::launch {
namespace {

using recipes::LinkPlan;

std::string host_json(const HostPlan& host) {
  return JsonLine()
      .add("host", std::string_view(host.host))
      .add("slots", host.slots)
      .raw("processes", json_array(host.processes, json_quote))
      .str();
}

std::string devices_json(const DevicePlan& there) {
  return JsonLine()
      .add("host", std::string_view(there.host))
      .raw("devices", json_array(there.devices, [](int64_t i) { return std::to_string(i); }))
      .str();
}

std::string role_json(const RolePlan& role) {
  return JsonLine()
      .add("role", std::string_view(role.name))
      .add("ranks", role.ranks)
      .add("parameters", role.parameters)
      .add("weight_bytes_per_rank", role.memory.parameters)
      .add("gradient_bytes_per_rank", role.memory.gradients)
      .add("optimizer_bytes_per_rank", role.memory.optimizer)
      .add("answer_bytes_per_rank", role.memory.answers)
      .add("activation_bytes_per_rank", role.memory.activations)
      .add("pushed_weights_bytes_per_rank", role.pushed_weights)
      .add("kv_cache_bytes_per_rank", role.kv_cache)
      .add("peak_bytes_per_rank", role.peak())
      .add("beside_tensors_bytes_per_rank", role.beside_tensors)
      .add("measured", role.measured)
      .raw("devices", json_array(role.devices, devices_json))
      .str();
}

std::string load_json(const DeviceLoad& load) {
  JsonLine line;
  line.add("host", std::string_view(load.host));
  if (load.device) line.add("device", *load.device);
  return line.raw("roles", json_array(load.roles, json_quote)).add("bytes", load.bytes).str();
}

std::string link_json(const LinkPlan& link) {
  JsonLine line;
  line.add("teacher", std::string_view(link.role))
      .add("bytes_per_target_token", link.bytes_per_token)
      .add("max_bytes_per_step", link.bytes_per_step)
      .add("max_prefetch_bytes_per_rank", link.prefetch_bytes);
  if (link.named_bytes_per_token > 0)
    line.add("named_bytes_per_target_token", link.named_bytes_per_token);
  return line.str();
}

// The link to a teacher whose payloads `retort cache` would keep.
std::string kept_link_json(const LinkPlan& link) {
  return JsonLine()
      .add("teacher", std::string_view(link.role))
      .add("bytes_per_target_token", link.bytes_per_token)
      .add("bytes_per_sequence", link.cache_bytes_per_sequence)
      .add("bytes_once", link.cache_bytes_once)
      .str();
}

std::string cache_json(const recipes::CachePlan& cache) {
  return JsonLine()
      .add("folder", cache.folder)
      .add("sequences", cache.sequences)
      .add("target_tokens", cache.target_tokens)
      .add("bytes", cache.bytes)
      .add("bytes_per_target_token", cache.bytes_per_token)
      .add("max_bytes_per_step", cache.bytes_per_step)
      .str();
}

std::string transfer_json(const TransferPlan& transfer, double link_gbit) {
  return JsonLine()
      .add("what", std::string_view(transfer.what))
      .add("bytes", transfer.bytes)
      .add("every_steps", transfer.every_steps)
      .add("seconds", transfer.seconds(link_gbit))
      .str();
}

std::string path_json(const PathPlan& path) {
  return JsonLine()
      .add("key", std::string_view(path.key))
      .add("path", std::string_view(path.path))
      .add("role", std::string_view(path.role))
      .raw("hosts", json_array(path.hosts, json_quote))
      .str();
}

}  // namespace

std::string plan_json(const Plan& plan, double link_gbit) {
  std::vector<LinkPlan> kept;
  std::ranges::copy_if(plan.links, std::back_inserter(kept), &LinkPlan::may_be_kept);
  const auto of_transfer = [&](const TransferPlan& transfer) {
    return transfer_json(transfer, link_gbit);
  };
  return JsonLine()
      .raw("hosts", json_array(plan.hosts, host_json))
      .raw("roles", json_array(plan.roles, role_json))
      .raw("shared_devices", json_array(plan.shared_devices, load_json))
      .raw("links", json_array(plan.links, link_json))
      .raw("may_be_cached", json_array(kept, kept_link_json))
      .raw("caches", json_array(plan.caches, cache_json))
      .add("link_gbit", link_gbit)
      .raw("transfers", json_array(plan.transfers, of_transfer))
      .raw("paths", json_array(plan.paths, path_json))
      .add("max_tokens_per_step", plan.tokens_per_step)
      .add("expected_bottleneck", std::string_view(plan.bottleneck().name))
      .str();
}

std::string plan_json(const recipes::Recipe& recipe, double link_gbit) {
  return plan_json(make_plan(recipe), link_gbit);
}

}  // namespace retort::launch

#include "launch/ranks/serving_rank.h"

#include <map>
#include <sstream>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/process_name.h"
#include "recipes/run/rank/agent_options.h"
#include "roles/serving_loop.h"

namespace retort::launch {

using recipes::RankContext;

namespace {

// Whoever finds the address finds a role that answers.
void publish_address(const RankContext& context, const std::string& address) {
  parallel::StoreClient store(context.store_host, context.store_port,
                              context.store_prefix(context.role),
                              context.recipe.launch.collective_timeout, context.connect_store);
  store.set("address/" + std::to_string(context.rank), address);
  const recipes::RoleOptions& role = context.role_options();
  RETORT_LOG(kInfo) << "serving " << (role.environment ? "an environment" : role.model) << " at "
                    << address;
}

// "1.25/3.5 ms": the median and the 99th percentile.
std::string times(const LogHistogram& histogram) {
  std::ostringstream text;
  text.precision(3);
  text << histogram.quantile(0.50) * 1e3 << "/" << histogram.quantile(0.99) * 1e3 << " ms";
  return text.str();
}

// A line for each method and role that called it: calls, times, bytes.
void log_served_calls(const rpc::Agent& agent) {
  std::map<std::pair<std::string, std::string>, rpc::MethodStats> sums;
  for (const rpc::MethodTraffic& traffic : agent.method_stats())
    if (traffic.served) sums[{traffic.method, role_of(traffic.peer)}] += traffic.stats;

  for (const auto& [key, stats] : sums)
    RETORT_LOG(kInfo) << "served " << key.first << " to " << key.second << ": " << stats.calls
                      << " calls, " << stats.errors << " errors, in the queue "
                      << times(stats.queue) << ", in the handler " << times(stats.handler)
                      << " (p50/p99), " << stats.bytes_received << " bytes in, " << stats.bytes_sent
                      << " out";
}

}  // namespace

void serve_until_stopped(const RankContext& context, ServingRank rank) {
  roles::ServedRole& role = *rank.role;
  const at::Device device = rank.world ? rank.world->device() : at::Device(at::kCPU);
  auto queue = std::make_shared<rpc::HandlerQueue>(roles::kMaxJobs);
  rpc::Agent agent(recipes::agent_options(context, device));
  role.serve(agent, queue);

  std::shared_ptr<void> connection = rank.connect ? rank.connect(agent) : nullptr;

  // The address of a replica is told when all of its ranks serve, and not before.
  if (rank.published_together) rank.world->all().barrier();
  if (role.answers()) publish_address(context, agent.address());

  // Each tick looks whether what the role speaks for is still there, and still what it was.
  context.report("serving", 0, "");
  const auto report = [&] {
    const roles::Progress now = role.progress();
    context.report("serving", now.count, now.unit + now.state);
  };
  const auto tick = [&](int64_t) {
    if (rank.engine) rank.engine->check();
    if (rank.watch) rank.engine->look(*rank.watch);
    report();
  };
  if (role.leads())
    role.lead(*queue, context.stop_requested, tick);
  else
    role.follow(*queue, report);

  // No more calls are taken, and all peers hear a goodbye.
  const std::string summary = role.summary();
  if (!summary.empty()) {
    RETORT_LOG(kInfo) << summary;
  }
  queue->close();
  connection.reset();
  agent.close();
  agent.join();
  log_served_calls(agent);
  const roles::Progress done = role.progress();
  context.report("done", done.count, done.unit);
}

}  // namespace retort::launch

#include "launch/ranks/served_calls.h"

#include <map>
#include <sstream>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/process_name.h"

namespace retort::launch {
namespace {

// "1.25/3.5 ms": the median and the 99th percentile.
std::string times(const LogHistogram& histogram) {
  std::ostringstream text;
  text.precision(3);
  text << histogram.quantile(0.50) * 1e3 << "/" << histogram.quantile(0.99) * 1e3 << " ms";
  return text.str();
}

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

void end_serving(rpc::HandlerQueue& queue, rpc::Agent& agent) {
  queue.close();
  agent.close();
  agent.join();
  log_served_calls(agent);
}

}  // namespace retort::launch

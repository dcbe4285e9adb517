#include "recipes/run/metrics/rpc_metrics.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "base/process_name.h"
#include "rpc/archive.h"

namespace retort::recipes {
namespace {

// Returns the texts of all ranks, in their order.
std::vector<std::string> gather_texts(parallel::Group& all, const std::string& mine) {
  if (all.size() == 1) return {mine};

  // An all-gather takes as much from every rank, so each pads its text to the longest, with its own
  // length before it.
  int64_t bytes = static_cast<int64_t>(mine.size());
  const int64_t longest = all.all_reduce(bytes, parallel::ReduceOp::kMax);
  const auto head = static_cast<int64_t>(sizeof bytes);
  const at::Tensor row = at::zeros({head + longest}, at::kByte);
  auto* data = row.mutable_data_ptr<uint8_t>();
  std::memcpy(data, &bytes, sizeof bytes);
  std::memcpy(data + head, mine.data(), mine.size());

  const at::Tensor rows = all.all_gather(row).contiguous();
  std::vector<std::string> texts;
  for (int64_t rank = 0; rank < all.size(); ++rank) {
    const uint8_t* from = rows.const_data_ptr<uint8_t>() + rank * (head + longest);
    std::memcpy(&bytes, from, sizeof bytes);
    texts.emplace_back(reinterpret_cast<const char*>(from + head), static_cast<size_t>(bytes));
  }
  return texts;
}

// More digits would be noise, and make the rows long.
double three_digits(double value) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.3g", value);
  return std::strtod(text.data(), nullptr);
}

void add(MetricsRow& row, const std::string& name, const rpc::MethodStats& stats) {
  const std::string prefix = "rpc/" + name + "/";
  const auto number = [&](const char* key, uint64_t value) {
    row.add(prefix + key, static_cast<int64_t>(value));
  };
  number("calls", stats.calls);
  number("errors", stats.errors);

  for (const auto& [part, histogram] :
       {std::pair{"queue", &stats.queue}, {"handler", &stats.handler}, {"wire", &stats.wire}}) {
    row.add(prefix + part + "_p50", three_digits(histogram->quantile(0.50)));
    row.add(prefix + part + "_p99", three_digits(histogram->quantile(0.99)));
  }

  number("bytes_sent", stats.bytes_sent);
  number("bytes_received", stats.bytes_received);
  number("credit_waits", stats.credit_waits);
  row.add(prefix + "credit_wait_time", stats.credit_wait_seconds);
}

}  // namespace

RpcMetrics::ByName RpcMetrics::since_last_row() {
  ByName now;
  for (const rpc::MethodTraffic& traffic : agent_.method_stats()) {
    if (traffic.served) continue;
    now[role_of(traffic.peer) + "/" + traffic.method] += traffic.stats;
  }

  ByName since;
  for (const auto& [name, stats] : now) {
    const rpc::MethodStats later = stats.since(before_[name]);
    if (later.calls > 0) since.emplace(name, later);
  }
  before_ = std::move(now);
  return since;
}

void RpcMetrics::add_to(MetricsRow& row, parallel::Group& all) {
  ByName sums;
  for (const std::string& text : gather_texts(all, rpc::to_bytes(since_last_row())))
    for (const auto& [name, stats] : rpc::from_bytes<ByName>(text))
      sums[name] += stats;
  for (const auto& [name, stats] : sums)
    add(row, name, stats);
}

double PeerMetrics::new_bytes() {
  uint64_t bytes = 0;
  for (const std::string& peer : agent_.peers()) {
    const rpc::PeerStats stats = agent_.stats(peer);
    bytes += stats.bytes_sent + stats.bytes_received;
  }
  return static_cast<double>(bytes - std::exchange(bytes_before_, bytes));
}

void PeerMetrics::add_bytes_per_token(MetricsRow& row, double bytes, double tokens) const {
  row.add("rpc/bytes_per_token", bytes / tokens);
}

void PeerMetrics::add_calls(MetricsRow& row) const {
  double p50 = 0, p99 = 0;
  uint64_t inflight = 0;
  for (const std::string& peer : agent_.peers()) {
    const rpc::PeerStats stats = agent_.stats(peer);
    p50 = std::max(p50, stats.latency_p50_ms);
    p99 = std::max(p99, stats.latency_p99_ms);
    inflight += stats.inflight_bytes;
  }
  row.add("rpc/latency_p50", p50 / 1e3);
  row.add("rpc/latency_p99", p99 / 1e3);
  row.add("rpc/inflight_bytes", static_cast<int64_t>(inflight));
}

}  // namespace retort::recipes

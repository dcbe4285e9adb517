#include "bench/rpc/rounds.h"

#include <algorithm>
#include <cmath>

namespace retort::bench {
namespace {

constexpr int kMaxCalls = 20000;

// How many round trips fill a turn: from first ones, which also warm memory and connections up.
int calls_of_a_turn(Contestant& contestant, int64_t bytes, int depth, double seconds) {
  if (bytes <= kSmallBytes) contestant.run(bytes, depth, 50 * depth);
  const Turn turn = contestant.run(bytes, depth, bytes > kSmallBytes ? depth : 50 * depth);
  const double each = turn.seconds / static_cast<double>(turn.call_us.size());
  return std::clamp(static_cast<int>(seconds / each), depth, kMaxCalls);
}

}  // namespace

std::vector<Rounds> measure(const std::vector<Named>& contestants, int64_t bytes, int depth,
                            const RoundOptions& options) {
  std::vector<int> calls;
  for (const Named& named : contestants)
    calls.push_back(calls_of_a_turn(*named.contestant, bytes, depth, options.turn_seconds));

  std::vector<Rounds> figures(contestants.size());
  for (int round = 0; round < options.rounds; ++round)
    for (size_t i = 0; i < contestants.size(); ++i) {
      const Turn turn = contestants[i].contestant->run(bytes, depth, calls[i]);
      const double per_second = static_cast<double>(calls[i]) / turn.seconds;
      figures[i].p50_us.push_back(median(turn.call_us));
      figures[i].calls_per_second.push_back(per_second);
      figures[i].bytes_per_second.push_back(per_second * static_cast<double>(bytes));
    }
  return figures;
}

std::vector<std::optional<LoadedRounds>> measure_loaded(const std::vector<Named>& contestants,
                                                        const RoundOptions& options) {
  std::vector<std::optional<LoadedRounds>> figures(contestants.size());
  std::vector<std::vector<double>> call_us(contestants.size());
  for (int round = 0; round < options.rounds; ++round)
    for (size_t i = 0; i < contestants.size(); ++i) {
      const auto turn = contestants[i].contestant->run_loaded(5 * options.turn_seconds);
      if (!turn) continue;
      if (!figures[i]) figures[i].emplace();
      figures[i]->stream_bytes_per_second.push_back(turn->stream_bytes_per_second);
      call_us[i].insert(call_us[i].end(), turn->call_us.begin(), turn->call_us.end());
    }

  for (size_t i = 0; i < contestants.size(); ++i) {
    if (!figures[i]) continue;
    figures[i]->p50_us = quantile(call_us[i], 0.5);
    figures[i]->p99_us = quantile(call_us[i], 0.99);
  }
  return figures;
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values.at(static_cast<size_t>(q * static_cast<double>(values.size() - 1)));
}

double median_ratio(const std::vector<double>& over, const std::vector<double>& under) {
  std::vector<double> ratios;
  for (size_t i = 0; i < over.size(); ++i)
    ratios.push_back(over[i] / under.at(i));
  return median(std::move(ratios));
}

}  // namespace retort::bench

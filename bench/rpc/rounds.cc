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

void add_round(const std::vector<Named>& contestants, int64_t bytes, int depth, double turn_seconds,
               std::vector<Rounds>& figures) {
  figures.resize(contestants.size());
  for (size_t i = 0; i < contestants.size(); ++i) {
    Contestant& contestant = *contestants[i].contestant;
    const int calls = calls_of_a_turn(contestant, bytes, depth, turn_seconds);
    const Turn turn = contestant.run(bytes, depth, calls);

    const double per_second = static_cast<double>(calls) / turn.seconds;
    figures[i].p50_us.push_back(median(turn.call_us));
    figures[i].calls_per_second.push_back(per_second);
    figures[i].bytes_per_second.push_back(per_second * static_cast<double>(bytes));
  }
}

void add_loaded_round(const std::vector<Named>& contestants, double turn_seconds,
                      std::vector<std::optional<LoadedRounds>>& figures) {
  figures.resize(contestants.size());
  for (size_t i = 0; i < contestants.size(); ++i) {
    const auto turn = contestants[i].contestant->run_loaded(5 * turn_seconds);
    if (!turn) continue;
    if (!figures[i]) figures[i].emplace();
    figures[i]->stream_bytes_per_second.push_back(turn->stream_bytes_per_second);
    figures[i]->call_us.insert(figures[i]->call_us.end(), turn->call_us.begin(),
                               turn->call_us.end());
  }
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

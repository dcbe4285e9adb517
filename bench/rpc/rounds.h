// Contestants take turns, so that the noise of a machine hits all of them alike.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/rpc/contestant.h"

namespace retort::bench {

struct Named {
  std::string name;
  std::unique_ptr<Contestant> contestant;
};

// Of one contestant and one size, a number for each round.
struct Rounds {
  std::vector<double> p50_us;            // of a round trip
  std::vector<double> bytes_per_second;  // of all on their way
  std::vector<double> calls_per_second;
};

// Adds a turn of each contestant, in their order; `figures` is empty before the first.
void add_round(const std::vector<Named>& contestants, int64_t bytes, int depth, double turn_seconds,
               std::vector<Rounds>& figures);

struct LoadedRounds {
  std::vector<double> call_us;  // of all rounds
  std::vector<double> stream_bytes_per_second;
};
// Likewise; empty for who has no stream.
void add_loaded_round(const std::vector<Named>& contestants, double turn_seconds,
                      std::vector<std::optional<LoadedRounds>>& figures);

double quantile(std::vector<double> values, double q);
inline double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }
// The median of the rounds' ratios.
double median_ratio(const std::vector<double>& over, const std::vector<double>& under);

}  // namespace retort::bench

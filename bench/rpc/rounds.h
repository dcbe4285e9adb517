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

struct RoundOptions {
  int rounds = 9;
  double turn_seconds = 0.1;
};

// Of one contestant and one size, a number for each round.
struct Rounds {
  std::vector<double> p50_us;            // of a round trip
  std::vector<double> bytes_per_second;  // of all on their way
  std::vector<double> calls_per_second;
};

// By contestant, in their order.
std::vector<Rounds> measure(const std::vector<Named>& contestants, int64_t bytes, int depth,
                            const RoundOptions& options);

struct LoadedRounds {
  double p50_us = 0, p99_us = 0;  // of the calls of all rounds
  std::vector<double> stream_bytes_per_second;
};
// Empty for who has no stream.
std::vector<std::optional<LoadedRounds>> measure_loaded(const std::vector<Named>& contestants,
                                                        const RoundOptions& options);

double quantile(std::vector<double> values, double q);
inline double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }
// The median of the rounds' ratios.
double median_ratio(const std::vector<double>& over, const std::vector<double>& under);

}  // namespace retort::bench

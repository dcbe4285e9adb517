// Finds which distribution the log-probabilities of drawn tokens belong to, from tokens that were
// drawn one at a time at a few places, in several ways.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engines/contract/contract.h"

namespace retort::engines {

inline constexpr double kProbeTemperature = 2;

// One token, drawn after a place of the text. Natural logarithms.
struct DrawnToken {
  size_t place = 0;
  int32_t id = 0;
  double drawn = 0;  // as the engine gave it with the draw
  double raw = 0;    // its log-probability at temperature 1, from score()
  // Between what its log-probability at kProbeTemperature lies; of a whole top-k both are it
  double least_tempered = -INFINITY;
  double most_tempered = INFINITY;
};

// The part of a distribution that a way of truncating leaves at a place, from the raw top-k there.
struct Kept {
  std::optional<double> mass;  // nullopt: the top-k is too narrow to say
  double least = -INFINITY;    // the raw log-probability of the least token that stays
};
// `row`: raw log-probabilities of a place, falling; empty: nothing is known. Of top_p, top_k and
// min_p one is set.
Kept kept_by(const models::SamplingOptions& how, std::span<const float> row);

// The tokens of one way of truncating, and of each place what it leaves.
struct Truncation {
  std::string name;  // "top_p 0.3"
  std::vector<DrawnToken> tokens;
  std::vector<Kept> kept;  // [places]
};

struct DrawnFinding {
  DrawnMeaning meaning = DrawnMeaning::kUnknown;
  std::string why;
  std::optional<bool> truncates;  // nullopt: nothing to tell by
};

// hot: drawn at kProbeTemperature from the whole vocabulary; the truncated ones at temperature 1.
// Raw and tempered are told apart by two tokens of a place, l_a - l_b against r_a - r_b and half of
// it, which needs no normaliser; by how much log-probabilities under a truncation lie above the raw
// ones, whether they are renormalised. An explanation counts when it is at most 0.1 nats off on
// average, and four times nearer than the other.
DrawnFinding explain(std::span<const DrawnToken> hot, std::span<const Truncation> truncations);

}  // namespace retort::engines

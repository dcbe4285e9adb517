#include "engines/probing/drawn_meaning.h"

#include <algorithm>
#include <cstdio>

namespace retort::engines {
namespace {

constexpr double kNear = 0.1;          // nats, on average
constexpr double kNearer = 0.25;       // of the distance to the other explanation
constexpr double kTelling = 0.5;       // nats between two tokens that tell
constexpr double kExcludedBy = 0.15;   // nats below the least token that stays
constexpr double kTellingShift = 0.1;  // nats by which a truncation must move log-probabilities

class Mean {
 public:
  void add(double value) { mean_ += (value - mean_) / static_cast<double>(++count_); }
  double value() const { return mean_; }
  int64_t count() const { return count_; }

 private:
  double mean_ = 0;
  int64_t count_ = 0;
};

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

bool explains(const Mean& mine, const Mean& other) {
  return mine.value() <= kNear && mine.value() <= kNearer * other.value();
}

enum class Heat { kRaw, kTempered, kUnknown };

// Tells whether temperature changes the engine's numbers. Two tokens drawn at one place are
// compared first, since their difference needs no normaliser: it is the raw one, or that one
// divided by the temperature. Single tokens must then fit the same explanation.
Heat heat_of(std::span<const DrawnToken> tokens, std::string& why) {
  Mean raw;
  Mean tempered;
  Mean off_raw;  // of single tokens, which needs the normaliser
  Mean off_tempered;
  for (size_t a = 0; a < tokens.size(); ++a) {
    const DrawnToken& token = tokens[a];
    off_raw.add(std::abs(token.drawn - token.raw));
    off_tempered.add(
        std::max({0.0, token.least_tempered - token.drawn, token.drawn - token.most_tempered}));
    for (size_t b = 0; b < a; ++b) {
      const double apart = token.raw - tokens[b].raw;
      if (token.place != tokens[b].place || !(std::abs(apart) >= kTelling)) continue;
      const double drawn_apart = token.drawn - tokens[b].drawn;
      raw.add(std::abs(drawn_apart - apart));
      tempered.add(std::abs(drawn_apart - apart / kProbeTemperature));
    }
  }

  if (raw.count() == 0) {
    why =
        "no two tokens that were drawn at temperature 2 are far enough apart to tell; the model "
        "is too certain of the probe's text";
    return Heat::kUnknown;
  }
  if (explains(raw, tempered) && off_raw.value() <= kNear) return Heat::kRaw;
  if (explains(tempered, raw) && off_tempered.value() <= kNear) return Heat::kTempered;
  why = "at temperature 2 two tokens of a place are " + number(raw.value()) +
        " nats off the raw distance on average, " + number(tempered.value()) +
        " off half of it, and single ones " + number(off_raw.value()) + " off the raw and " +
        number(off_tempered.value()) + " off the tempered log-probability";
  return Heat::kUnknown;
}

enum class Cut { kSame, kRenormalised, kUntold, kUnknown };

// Tells whether a truncation changes the engine's numbers: renormalised on the mass that it keeps,
// each of them is larger by -log of that mass.
Cut cut_of(const Truncation& truncation, std::string& why) {
  Mean same;
  Mean renormalised;
  Mean expected;
  for (const DrawnToken& token : truncation.tokens) {
    const std::optional<double>& mass = truncation.kept[token.place].mass;
    if (!mass) continue;
    const double shift = -std::log(*mass);
    expected.add(shift);
    same.add(std::abs(token.drawn - token.raw));
    renormalised.add(std::abs(token.drawn - token.raw - shift));
  }

  // Where a truncation keeps nearly all of the mass, both explanations predict the same numbers.
  if (expected.count() == 0 || expected.value() < kTellingShift) return Cut::kUntold;
  if (explains(same, renormalised)) return Cut::kSame;
  if (explains(renormalised, same)) return Cut::kRenormalised;
  why = "with " + truncation.name + " log-probabilities are " + number(same.value()) +
        " nats off the raw ones on average, and " + number(renormalised.value()) +
        " off those renormalised on what it keeps";
  return Cut::kUnknown;
}

// Returns the first token that was drawn although the truncation excludes it.
const DrawnToken* excluded(const Truncation& truncation) {
  for (const DrawnToken& token : truncation.tokens)
    if (token.raw < truncation.kept[token.place].least - kExcludedBy) return &token;
  return nullptr;
}

DrawnMeaning meaning_of(Heat heat, Cut cut, std::string& why) {
  if (heat == Heat::kUnknown || cut == Cut::kUnknown) return DrawnMeaning::kUnknown;
  if (heat == Heat::kTempered) {
    if (cut == Cut::kRenormalised) return DrawnMeaning::kProcessed;
    why = cut == Cut::kUntold ? "whether truncation renormalises them could not be told" : "";
    return DrawnMeaning::kTempered;
  }
  if (cut != Cut::kRenormalised) return DrawnMeaning::kRaw;
  why = "truncation renormalises them, and temperature does not change them";
  return DrawnMeaning::kUnknown;
}

}  // namespace

Kept kept_by(const models::SamplingOptions& how, std::span<const float> row) {
  if (row.empty()) return {};
  double mass = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    const bool by_count = how.top_k > 0 && static_cast<int64_t>(i) >= how.top_k;
    const bool by_share = how.min_p > 0 && row[i] < row[0] + std::log(how.min_p);
    const bool by_mass = how.top_p < 1 && mass >= how.top_p;
    if (by_count || by_share || by_mass) return {.mass = mass, .least = row[i - 1]};
    mass += std::exp(static_cast<double>(row[i]));
  }
  // All that is known stays. Further tokens bring a top_p no farther above its mass than the last.
  if (how.top_p < 1 && mass < how.top_p && row.back() < std::log(0.1 * how.top_p))
    return {.mass = how.top_p, .least = -INFINITY};
  if (how.top_p < 1 && mass >= how.top_p) return {.mass = mass, .least = row.back()};
  return {};
}

DrawnFinding explain(std::span<const DrawnToken> hot, std::span<const Truncation> truncations) {
  DrawnFinding finding;
  const Heat heat = heat_of(hot, finding.why);

  // All ways of truncating must be treated alike, or there is no one meaning. A way that tells
  // nothing does not count.
  Cut cut = Cut::kUntold;
  for (const Truncation& truncation : truncations) {
    const Cut one = cut_of(truncation, finding.why);
    if (one != Cut::kUntold && cut != Cut::kUntold && one != cut) {
      finding.why = "ways of truncating are treated differently, the last is " + truncation.name;
      cut = Cut::kUnknown;
      break;
    }
    if (one != Cut::kUntold) cut = one;
  }
  finding.meaning = meaning_of(heat, cut, finding.why);

  // One token that a truncation excludes shows that it is not obeyed. It counts as obeyed only
  // where the least token that stays is known, so that a token could have shown the contrary.
  for (const Truncation& truncation : truncations) {
    if (truncation.tokens.empty()) continue;
    if (const DrawnToken* token = excluded(truncation)) {
      finding.truncates = false;
      finding.why += (finding.why.empty() ? "" : "; ") + std::string("with ") + truncation.name +
                     " it drew token " + std::to_string(token->id) + ", which that excludes";
      break;
    }
    const auto told = [](const Kept& kept) { return std::isfinite(kept.least); };
    if (std::any_of(truncation.kept.begin(), truncation.kept.end(), told)) finding.truncates = true;
  }
  return finding;
}

}  // namespace retort::engines

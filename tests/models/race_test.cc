// VectorKernels::race, which scores the few ids that may win by its bound, beside plain_race, which
// scores every id: the same token in every case, in each width that this processor has.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "models/generation/sampler.h"
#include "tests/models/vector_widths.h"

namespace retort::models {
namespace {

class Race : public testing::TestWithParam<VectorWidth> {
 protected:
  int64_t raced(const std::vector<float>& weights, uint64_t key) const {
    return kernels_.race(weights.data(), std::ssize(weights), key);
  }
  int64_t wanted(const std::vector<float>& weights, uint64_t key) const {
    return kernels_.plain_race(weights.data(), std::ssize(weights), key);
  }

 private:
  const VectorKernels& kernels_ = *kernels_of(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Widths, Race, testing::ValuesIn(widths_here()), width_name);

// The 64 bits that an id has under a key, its uniform number, and E of it, by their definition.
uint64_t bits_of(uint64_t key, size_t id) { return random_mix(key ^ id); }
double uniform_of(uint64_t bits) { return (static_cast<double>(bits >> 11) + 0.5) * 0x1.0p-53; }
double exponential_of(uint64_t bits) { return -std::log(uniform_of(bits)); }

// The key under which an id has these bits: random_mix() backwards.
uint64_t key_for(uint64_t bits, size_t id) {
  uint64_t z = bits ^ (bits >> 31) ^ (bits >> 62);
  z *= 0x319642b2d24d8ec3ULL;
  z = z ^ (z >> 27) ^ (z >> 54);
  z *= 0x96de1b173f119089ULL;
  z = z ^ (z >> 30) ^ (z >> 60);
  return (z - 0x9e3779b97f4a7c15ULL) ^ id;
}

// Weights of `size` ids by a function of the id.
template <class Weight>
std::vector<float> weights_of(size_t size, Weight weight) {
  std::vector<float> weights;
  for (size_t i = 0; i < size; ++i)
    weights.push_back(static_cast<float>(weight(i)));
  return weights;
}

// e^(logit / temperature) of random logits whose largest weight is 1.
std::vector<float> softmax_weights(size_t size, double temperature) {
  const auto logit = [](size_t i) { return 2 * random_gumbel(11, i) / 1.3; };
  double largest = logit(0);
  for (size_t i = 0; i < size; ++i)
    largest = std::max(largest, logit(i));
  return weights_of(size, [&](size_t i) {
    return std::exp(std::max(-87.0, (logit(i) - largest) / temperature));
  });
}

std::vector<std::pair<std::string, std::vector<float>>> distributions(size_t size) {
  const auto share = [size](size_t i) {
    return static_cast<double>(i) / static_cast<double>(size);
  };
  const auto all = [size](float weight) { return std::vector<float>(size, weight); };
  std::vector<std::pair<std::string, std::vector<float>>> cases{
      {"equal", all(1)},
      {"as small as a softmax has them", all(1.6458115e-38f)},
      {"denormal", all(1e-42f)},
      {"huge", all(3e38f)},
      {"zero", all(0)},
      {"rising", weights_of(size, [&](size_t i) { return std::exp(80 * share(i) - 80); })},
      {"falling", weights_of(size, [&](size_t i) { return std::exp(-80 * share(i)); })},
      {"of every size",
       weights_of(size, [](size_t i) { return std::exp(170 * random_uniform(3, i) - 87); })},
      {"mostly zero",
       weights_of(size, [](size_t i) { return i % 37 == 5 ? random_uniform(4, i) : 0; })},
      {"spike", weights_of(size, [&](size_t i) { return i == size / 2 ? 1 : 1e-9; })},
      {"not numbers", weights_of(size, [](size_t i) { return i % 3 == 1 ? NAN : 0.5; })},
      {"infinite", weights_of(size, [](size_t i) { return i % 50 == 9 ? INFINITY : 1; })}};
  for (const double temperature : {0.02, 0.7, 1.0, 5.0})
    cases.push_back(
        {"temperature " + std::to_string(temperature), softmax_weights(size, temperature)});
  return cases;
}

TEST_P(Race, FindsTheTokenOfTheScoreOfEveryId) {
  for (const size_t size : {1, 2, 7, 15, 16, 17, 31, 127, 128, 129, 511, 700, 8195, 151936}) {
    const uint64_t draws = size <= 700 ? 60 : 30000 / size + 1;
    for (const auto& [name, weights] : distributions(size)) {
      for (uint64_t draw = 0; draw < draws; ++draw) {
        const uint64_t key = noise_key(1, size, draw);
        ASSERT_EQ(raced(weights, key), wanted(weights, key)) << name << " " << size << " " << draw;
      }
    }
  }
}

// Each id's weight is its own E, rounded to a float: every score is 1 but for the last bits, so
// that each id but those with an E far below its neighbours' may win, and the scores decide.
TEST_P(Race, OfScoresThatAreNearlyTied) {
  for (const size_t size : {40, 300, 1021}) {
    for (uint64_t draw = 0; draw < 200; ++draw) {
      const uint64_t key = noise_key(2, size, draw);
      const auto weights =
          weights_of(size, [&](size_t i) { return exponential_of(bits_of(key, i)); });
      ASSERT_EQ(raced(weights, key), wanted(weights, key)) << size << " " << draw;
    }
  }
}

// -log u as the race has it, in the arithmetic of numbers by themselves, without fused operations.
double minus_log(double u) {
  int k = 0;
  double m = std::frexp(u, &k);  // from 1/2 to 1, then from sqrt(1/2) to sqrt(2)
  if (m < std::sqrt(0.5)) {
    m *= 2;
    --k;
  }
  const double s = (m - 1) / (m + 1);
  const double z = s * s;
  double p = 1.0 / 15;
  for (const double term : {13.0, 11.0, 9.0, 7.0, 5.0, 3.0})
    p = p * z + 1 / term;
  return -(k * 0.6931471805599453 + 2 * (s + s * z * p));
}

TEST(PlainRace, IsTheFormulaNumberByNumber) {
  const VectorKernels& portable = *kernels_of(VectorWidth::kPortable);
  for (const size_t size : {1, 40, 1000}) {
    for (const auto& [name, weights] : distributions(size)) {
      for (uint64_t draw = 0; draw < 20; ++draw) {
        const uint64_t key = noise_key(6, size, draw);
        double best = 0;
        int64_t winner = 0;
        for (size_t i = 0; i < size; ++i) {
          const double score =
              static_cast<double>(weights[i]) / minus_log(uniform_of(bits_of(key, i)));
          if (!(score > best)) continue;
          best = score;
          winner = static_cast<int64_t>(i);
        }
        ASSERT_EQ(portable.plain_race(weights.data(), std::ssize(weights), key), winner)
            << name << " " << size << " " << draw;
      }
    }
  }
}

// Two ids whose scores differ by at most two units in the last place of a double.
struct Tie {
  size_t first, second;
  float first_weight, second_weight;
};

constexpr uint64_t kTieKey = 8;
constexpr size_t kTieSize = 8192;

// Each id gets the weight that brings its score next to a target, as near as floats lie. Of so many
// remainders some are equal but for a share of 2^-52.
std::vector<Tie> ties() {
  struct Id {
    double score;
    float weight;
    size_t id;
  };
  std::vector<double> e;
  for (size_t i = 0; i < kTieSize; ++i)
    e.push_back(minus_log(uniform_of(bits_of(kTieKey, i))));
  std::vector<Tie> found;
  for (int target = 0; target < 400; ++target) {
    std::vector<Id> ids;
    for (size_t i = 0; i < kTieSize; ++i) {
      const auto weight = static_cast<float>(e[i] * (1 + target * 0.0025));
      ids.push_back({static_cast<double>(weight) / e[i], weight, i});
    }
    std::sort(ids.begin(), ids.end(), [](const Id& a, const Id& b) { return a.score < b.score; });
    for (size_t i = 1; i < ids.size(); ++i) {
      if (ids[i].score > ids[i - 1].score * (1 + 0x1.0p-52)) continue;
      const auto [first, second] =
          std::minmax(ids[i - 1], ids[i], [](const Id& a, const Id& b) { return a.id < b.id; });
      found.push_back({first.id, second.id, first.weight, second.weight});
    }
  }
  return found;
}

// The last bit of a double decides, or nothing but the order: the score that an id gets by itself
// must be, bit for bit, the one that it gets among those of a vector.
TEST_P(Race, OfTwoThatTieInTheLastBit) {
  static const std::vector<Tie> pairs = ties();
  ASSERT_GT(pairs.size(), 20u);
  std::vector<float> weights(kTieSize, 0.0f);
  int first_wins = 0;
  for (const Tie& tie : pairs) {
    weights[tie.first] = tie.first_weight;
    weights[tie.second] = tie.second_weight;
    const int64_t winner = wanted(weights, kTieKey);
    ASSERT_EQ(raced(weights, kTieKey), winner) << tie.first << " " << tie.second;
    first_wins += winner == static_cast<int64_t>(tie.first) ? 1 : 0;
    weights[tie.first] = weights[tie.second] = 0;
  }
  EXPECT_GT(first_wins, 0);
  EXPECT_LT(first_wins, std::ssize(pairs));
}

// Where the bound has no slack but its own: one id has a uniform number that lies at the upper end
// of those with its first 24 bits, next to 1, and an id before it scores as much but for a few
// units in the last place of a weight. Equal but for these, the one or the other wins.
TEST_P(Race, OfTwoNearlyTiedWhereTheBoundIsTight) {
  constexpr size_t kEarly = 3;
  int64_t late_wins = 0;
  int64_t draws = 0;
  for (const uint64_t gap : {1, 2, 3, 4, 5, 8, 13, 100, 5000, 1 << 20, (1 << 24) - 1}) {
    for (const size_t late : {4, 100, 599}) {  // of the same piece, and of a later one
      const uint64_t bits = ~(gap << 40);
      const uint64_t key = key_for(bits, late);
      ASSERT_EQ(bits_of(key, late), bits);
      std::vector<float> weights(620, 0.0f);
      for (uint64_t draw = 0; draw < 300; ++draw) {
        weights[late] = static_cast<float>(0.25 + random_uniform(5, gap, late, draw));
        const double score = static_cast<double>(weights[late]) / exponential_of(bits);
        float rival = static_cast<float>(score * exponential_of(bits_of(key, kEarly)));
        for (uint64_t step = 0; step < draw % 3; ++step)
          rival = std::nextafter(rival, 0.0f);
        weights[kEarly] = rival;
        const int64_t winner = wanted(weights, key);
        ASSERT_EQ(raced(weights, key), winner) << gap << " " << late << " " << draw;
        late_wins += winner == static_cast<int64_t>(late) ? 1 : 0;
        ++draws;
      }
    }
  }
  EXPECT_GT(late_wins, draws / 4);
  EXPECT_LT(late_wins, draws);
}

// The ends of the uniform numbers: the largest rounds to 1, whose logarithm is no divisor, and such
// an id never wins; the least has the largest E.
TEST_P(Race, OfTheFirstAndTheLastUniformNumber) {
  ASSERT_EQ(uniform_of(~uint64_t{0}), 1);
  for (const uint64_t bits : {~uint64_t{0}, ~uint64_t{0} - (1 << 11), ~uint64_t{0} - (5 << 11),
                              ~(uint64_t{1} << 40), uint64_t{1} << 11, uint64_t{0}}) {
    for (const size_t id : {0, 5, 299}) {
      const uint64_t key = key_for(bits, id);
      for (const float weight : {1.0f, 1e-3f, 1e-9f, 1e-38f, 0.0f}) {
        std::vector<float> weights(300, 1e-4f);
        weights[id] = weight;
        ASSERT_EQ(raced(weights, key), wanted(weights, key)) << bits << " " << id << " " << weight;
        std::vector<float> alone(300, 0.0f);
        alone[id] = weight;
        ASSERT_EQ(raced(alone, key), wanted(alone, key)) << bits << " " << id << " " << weight;
      }
    }
  }
}

// What the sampler draws, on each of its ways to weights: they are those that it leaves behind.
TEST(SampledRace, IsThePlainRaceOfTheWeightsOfEveryOption) {
  const std::vector<SamplingOptions> settings{
      {},
      {.temperature = 0.001},
      {.temperature = 0.3},
      {.temperature = 100},
      {.top_p = 0.5},
      {.top_k = 1},
      {.top_k = 5},
      {.min_p = 0.1},
      {.typical_p = 0.4},
      {.temperature = 0.8, .top_p = 0.95, .top_k = 50, .min_p = 0.01, .typical_p = 0.9}};
  SamplerScratch scratch;
  for (const size_t size : {1, 17, 1000, 8195}) {
    // Ordinary logits, such with many ties, equal ones, one above all, and the ends of float32.
    const auto normal = [](size_t i) { return 3 * random_gumbel(12, i); };
    const std::vector<std::vector<float>> rows{
        weights_of(size, normal),
        weights_of(size, [&](size_t i) { return std::round(normal(i)); }),
        weights_of(size, [](size_t) { return 7; }),
        weights_of(size, [&](size_t i) { return i == size - 1 ? 1e4 : 0; }),
        weights_of(size, [](size_t i) { return i % 2 == 0 ? 3e38 : -3e38; }),
        weights_of(size, [&](size_t i) { return normal(i) * 1e-38; })};

    // Several positions, each with noise of its own.
    for (size_t r = 0; r < rows.size(); ++r) {
      for (size_t s = 0; s < settings.size(); ++s) {
        for (uint64_t position = 0; position < 12; ++position) {
          const auto count = static_cast<int64_t>(size);
          const Choice choice =
              choose_token(rows[r].data(), count, settings[s], {}, 4, position, scratch);
          ASSERT_EQ(choice.token,
                    vector_kernels().plain_race(scratch.weights.data(), count,
                                                noise_key(settings[s].seed, 4, position)))
              << size << " " << r << " " << s << " " << position;
        }
      }
    }
  }
}

}  // namespace
}  // namespace retort::models

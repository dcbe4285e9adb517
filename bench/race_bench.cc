// The race of a draw by its bound (models/generation/cpu_kernels/vector_sampling.h), beside the
// race by the score of every id, in turns, in each width of vectors that this processor has.
//
//   race_bench [rounds, default 21]
//
// Weights: of a softmax over random logits with a standard deviation of 2; of the 50 largest of
//   these, the others 0; all equal; and e^(80 (id / V - 1)), where almost every piece has an id
//   that leads: the worst that there is.
// Columns: microseconds of the processor a draw, medians of the rounds; the median of the rounds'
//   ratios, and their quartiles. A round has the same draws for both; every token is compared.
// The last line is what choose_token costs as a whole, at temperature 1 over the whole vocabulary.
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "models/generation/cpu_kernels/vector_kernels.h"
#include "models/generation/sampler.h"

namespace retort::bench {
namespace {

using namespace models;
using Race = int64_t (*)(const float* weights, int64_t size, uint64_t noise_key);

// Of this thread alone: other programs on the machine change it less than the time that passes.
double processor_us() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values.at(static_cast<size_t>(q * static_cast<double>(values.size() - 1)));
}

std::vector<float> random_logits(int64_t size) {
  std::vector<float> logits;
  for (int64_t i = 0; i < size; ++i) {
    const auto id = static_cast<uint64_t>(i);
    const double radius = std::sqrt(-2 * std::log(random_uniform(1, id)));
    logits.push_back(
        static_cast<float>(2 * radius * std::cos(6.283185307 * random_uniform(2, id))));
  }
  return logits;
}

using Weights = std::pair<std::string, std::vector<float>>;

std::vector<Weights> distributions(int64_t size) {
  std::vector<float> softmax = random_logits(size);
  const float largest = *std::max_element(softmax.begin(), softmax.end());
  for (float& x : softmax)
    x = std::exp(x - largest);

  std::vector<float> sorted = softmax;
  std::nth_element(sorted.begin(), sorted.begin() + 50, sorted.end(), std::greater<>());
  std::vector<float> cut = softmax;
  for (float& x : cut)
    x = x > sorted[50] ? x : 0.0f;

  std::vector<float> rising;
  for (int64_t i = 0; i < size; ++i)
    rising.push_back(std::exp(80 * static_cast<float>(i) / static_cast<float>(size) - 80));
  return {{"softmax", softmax},
          {"50 largest", cut},
          {"all equal", std::vector<float>(static_cast<size_t>(size), 1.0f)},
          {"rising", rising}};
}

// Microseconds a draw, and the tokens.
struct Turn {
  double us = 0;
  std::vector<int64_t> tokens;
};

Turn take_turn(Race race, const std::vector<float>& weights, int round, int draws) {
  Turn turn;
  const double begin = processor_us();
  for (int draw = 0; draw < draws; ++draw) {
    const uint64_t key = noise_key(1, static_cast<uint64_t>(round), static_cast<uint64_t>(draw));
    turn.tokens.push_back(race(weights.data(), std::ssize(weights), key));
  }
  turn.us = (processor_us() - begin) / draws;
  return turn;
}

void measure(const char* width, const VectorKernels& kernels, const Weights& weights, int rounds) {
  const auto draws = static_cast<int>(1'000'000 / weights.second.size() + 1);
  std::vector<double> plain_us, bound_us, ratios;
  for (int round = 0; round < rounds; ++round) {
    // Who goes first changes, so that the order is nobody's advantage.
    Turn plain, bound;
    if (round % 2 == 0) plain = take_turn(kernels.plain_race, weights.second, round, draws);
    bound = take_turn(kernels.race, weights.second, round, draws);
    if (round % 2 == 1) plain = take_turn(kernels.plain_race, weights.second, round, draws);
    RETORT_CHECK(plain.tokens == bound.tokens) << "other tokens: " << weights.first;
    plain_us.push_back(plain.us);
    bound_us.push_back(bound.us);
    ratios.push_back(plain.us / bound.us);
  }
  std::printf("| %-8s | %7zu | %-10s | %9.1f | %9.1f | %5.2f | %5.2f, %5.2f |\n", width,
              weights.second.size(), weights.first.c_str(), quantile(plain_us, 0.5),
              quantile(bound_us, 0.5), quantile(ratios, 0.5), quantile(ratios, 0.25),
              quantile(ratios, 0.75));
}

void measure_whole_draws(int64_t size, int rounds) {
  const std::vector<float> logits = random_logits(size);
  SamplerScratch scratch;
  std::vector<double> us;
  for (int round = 0; round < 4 * rounds; ++round) {
    const double begin = processor_us();
    choose_token(logits.data(), size, {}, {}, static_cast<uint64_t>(round), 0, scratch);
    us.push_back(processor_us() - begin);
  }
  std::printf("choose_token of %lld ids: %.1f us, median\n", static_cast<long long>(size),
              quantile(us, 0.5));
}

void run(int rounds) {
  const std::vector<std::pair<const char*, VectorWidth>> widths{
      {"avx512", VectorWidth::kAvx512},
      {"avx2", VectorWidth::kAvx2},
      {"portable", VectorWidth::kPortable}};
  std::printf("%d rounds\n", rounds);
  std::printf(
      "| vectors  |     ids | weights    |  every us |  bound us | ratio | quartiles    |\n");
  for (const int64_t size : {151936, 8192}) {
    const std::vector<Weights> all = distributions(size);
    for (const auto& [name, width] : widths) {
      const VectorKernels* kernels = kernels_of(width);
      if (kernels == nullptr) continue;
      for (const Weights& weights : all)
        measure(name, *kernels, weights, rounds);
    }
  }
  for (const int64_t size : {151936, 8192})
    measure_whole_draws(size, rounds);
}

}  // namespace
}  // namespace retort::bench

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 21;
  if (rounds < 1) {
    std::fprintf(stderr, "usage: race_bench [rounds, from 1]\n");
    return 2;
  }
  retort::bench::run(rounds);
  return 0;
}

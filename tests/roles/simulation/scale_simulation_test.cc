// What our own messages cost at many ranks, in the simulation; docs/scale.md has the numbers.
//   RETORT_RANKS=1024,4096 build/tests/scale_simulation_test --gtest_filter='Scale.*' prints more.
#include "tests/roles/simulation/scale_simulation.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/rpc/simulation/seeds.h"
#include "tests/support/thrown.h"

namespace retort::roles::simulation {
namespace {

using rpc::simulation::Network;

std::vector<int64_t> ranks() {
  const char* given = std::getenv("RETORT_RANKS");
  std::vector<int64_t> numbers;
  std::istringstream items(given != nullptr ? given : "16,64");
  for (std::string item; std::getline(items, item, ',');)
    numbers.push_back(std::stoll(item));
  return numbers;
}

double real_seconds_since(std::chrono::system_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::system_clock::now() - start).count();
}

// What `scale_bench --part sessions --heartbeat 7s` measured, as docs/scale.md says.
struct Measured {
  uint64_t requests = 0;
  double core_seconds = 0;
};
const std::map<int64_t, Measured> kMeasured{{16, {24, 0.21}}, {64, {96, 2.2}}, {256, {512, 62.6}}};
// Of that machine: what each end of a session takes of a core, and a heartbeat on one.
constexpr int64_t kSessionMicroseconds = 1300, kHeartbeatMicroseconds = 33;
constexpr Duration kHeartbeat{7'000};
// 256 ranks, whose caches and page tables are cold, are a little further off.
constexpr double kWithin = 0.25, kWithinAt256 = 0.3;

void expect_as_measured(int64_t n, double core_seconds) {
  const auto found = kMeasured.find(n);
  if (found == kMeasured.end()) return;
  const double measured = found->second.core_seconds;
  EXPECT_NEAR(core_seconds, measured, (n >= 256 ? kWithinAt256 : kWithin) * measured) << n;
}

TEST(Scale, AStudentAsksTheStoreOnceForEach64Addresses) {
  for (const int64_t n : ranks()) {
    const LookUpCost cost = look_up(n / 2, n / 2);
    EXPECT_EQ(cost.requests, static_cast<uint64_t>(n / 2 * ((n / 2 + 63) / 64 + 2)));
    if (kMeasured.contains(n)) {
      EXPECT_EQ(cost.requests, kMeasured.at(n).requests);
    }
    std::printf("look-ups %5lld ranks: %llu requests, %.3f MB asked, %.3f MB answered\n",
                static_cast<long long>(n), static_cast<unsigned long long>(cost.requests),
                static_cast<double>(cost.asked_bytes) / 1e6,
                static_cast<double>(cost.answered_bytes) / 1e6);
  }
}

// Who waits for all addresses at once makes the store keep as many keys as there are sessions, and
// it has room for some.
TEST(Scale, WaitingForAllAddressesAtOnceIsMoreThanTheStoreKeeps) {
  test::expect_error(ErrorCode::kResourceExhausted, "too many requests wait",
                     [] { look_up(2048, 2048, 2048); });
}

// As scale_bench has it: all ranks on the two cores of one machine. Then each on a core of its own,
// with two students of many.
TEST(Scale, EveryStudentHasASessionWithEveryTeacher) {
  for (const int64_t n : ranks()) {
    const int64_t half = n / 2, sampled = n <= 256 ? half : 2;
    for (const int64_t cores : {2, 0}) {
      if (cores > 0 && sampled < half) continue;
      const auto start = std::chrono::system_clock::now();
      const SessionCost cost = connect(sampled, half,
                                       {.latency_ms = 1,
                                        .session_us = kSessionMicroseconds,
                                        .heartbeat_us = kHeartbeatMicroseconds,
                                        .cores = cores},
                                       kHeartbeat);
      const auto expected = static_cast<uint64_t>(sampled * half);
      EXPECT_EQ(cost.sessions, expected);
      EXPECT_EQ(cost.dials, expected) << "nobody dials twice";
      if (cores > 0) expect_as_measured(n, cost.core_seconds);
      std::printf(
          "sessions %5lld ranks, %s: %llu of %lld sessions, %llu dials, %.2f s simulated, %.2f "
          "s of cores, %.0f bytes of control and %.0f of data a session (%.1f s to simulate)\n",
          static_cast<long long>(n), cores > 0 ? "two cores in all" : "a core each",
          static_cast<unsigned long long>(cost.sessions), static_cast<long long>(half * half),
          static_cast<unsigned long long>(cost.dials), cost.seconds, cost.core_seconds,
          static_cast<double>(cost.control_bytes) / static_cast<double>(cost.sessions),
          static_cast<double>(cost.data_bytes) / static_cast<double>(cost.sessions),
          real_seconds_since(start));
    }
  }
}

// A bucket takes 5 ms of a host's link, as 64 MiB at 100 Gbit/s do.
TEST(Scale, APushLeavesTheStudentTwice) {
  constexpr int64_t kBucketBytes = 64'000, kWordBytes = 250;
  for (const int64_t n : ranks()) {
    const int64_t replicas = n - 1, num_buckets = n <= 1024 ? 16 : 8;
    for (const bool pass_on : {true, false}) {
      if (!pass_on && n > 256) continue;
      const auto start = std::chrono::system_clock::now();
      const PushCost cost = push(replicas, num_buckets, kBucketBytes, pass_on,
                                 {.latency_ms = 0, .host_bytes_per_ms = kBucketBytes / 5});
      const auto models = [&](uint64_t bytes) {
        return static_cast<double>(bytes) / static_cast<double>(cost.model_bytes);
      };
      EXPECT_EQ(cost.arrived, static_cast<size_t>(replicas));
      // A bucket that is passed on costs the student some words.
      const uint64_t weights = cost.model_bytes * static_cast<uint64_t>(pass_on ? 2 : replicas);
      const auto words = static_cast<uint64_t>(kWordBytes * replicas * num_buckets);
      EXPECT_GE(cost.sent_by_student, weights);
      EXPECT_LE(cost.sent_by_student, weights + words);
      EXPECT_LE(models(cost.most_sent_by_replica), 2.1);
      EXPECT_EQ(cost.sessions, static_cast<uint64_t>(pass_on ? replicas - 2 : 0));
      std::printf(
          "push     %5lld replicas, %s: the student sends %.2f models, a replica at most %.2f; "
          "%llu messages, %llu sessions, %.3f s simulated, one model takes %.3f s (%.1f s to "
          "simulate)\n",
          static_cast<long long>(replicas), pass_on ? "passed on" : "from the student",
          models(cost.sent_by_student), models(cost.most_sent_by_replica),
          static_cast<unsigned long long>(cost.messages),
          static_cast<unsigned long long>(cost.sessions), cost.seconds,
          static_cast<double>(num_buckets) * 0.005, real_seconds_since(start));
    }
  }
}

}  // namespace
}  // namespace retort::roles::simulation

int main(int argc, char** argv) {
  retort::rpc::simulation::init_simulations(&argc, argv);
  at::set_num_threads(1);
  return RUN_ALL_TESTS();
}

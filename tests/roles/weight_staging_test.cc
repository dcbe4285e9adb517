// Weights that have arrived at a generator's rank: what it refuses, keeps and forgets, and what is
// put in use.
#include "roles/generator/weight_staging.h"
#include "roles/generator/weight_buckets.h"
#include "roles/generator/weight_checksum.h"

#include <atomic>
#include <future>
#include <map>
#include <random>
#include <thread>

#include "roles/generator/weight_box.h"
#include "tests/roles/generator_fixture.h"
#include "tests/roles/sealed_weights.h"
#include "tests/support/thrown.h"

namespace retort::roles {
namespace {

// What is kept for a generator that comes back: the same numbers, in memory of their own.
TEST(SealCopy, SaysWhatSealSaysAndUsesMemoryAgainThatNobodyHolds) {
  const auto decoder = other_decoder(1);
  const auto cut = [&] {
    return make_weight_buckets(decoder, weight_slices(decoder), 1, 1 << 20).at(0);
  };
  WeightBucket plain = cut(), first = cut(), again = cut(), held = cut();
  const uint64_t checksum = seal(plain, 3);
  EXPECT_EQ(seal_copy(first, 3, false, nullptr), checksum);
  const void* memory = first.parts.at(0).values.const_data_ptr();
  EXPECT_NE(memory, plain.parts.at(0).values.const_data_ptr());
  for (size_t i = 0; i < plain.parts.size(); ++i) {
    EXPECT_EQ(first.parts.at(i).checksum, plain.parts[i].checksum);
    EXPECT_TRUE(at::equal(first.parts.at(i).values, plain.parts[i].values));
  }

  EXPECT_EQ(seal_copy(again, 3, false, &first), checksum);
  EXPECT_EQ(again.parts.at(0).values.const_data_ptr(), memory);
  // Two hold it now, as when a message is still on its way.
  EXPECT_EQ(seal_copy(held, 3, false, &again), checksum);
  EXPECT_NE(held.parts.at(0).values.const_data_ptr(), memory);
}

TEST(WeightBuckets, HoldEveryRowOnceWithinTheirSize) {
  const auto decoder = other_decoder(1);
  for (const int64_t bytes : {1, 64, 200, 4096, 1 << 20}) {
    const auto buckets = make_weight_buckets(decoder, weight_slices(decoder), 5, bytes);
    auto own = decoder.parameters();
    size_t parameter = 0;
    int64_t row = 0;
    for (size_t i = 0; i < buckets.size(); ++i) {
      EXPECT_EQ(buckets[i].index, static_cast<int64_t>(i));
      EXPECT_EQ(buckets[i].version, 5u);
      int64_t size = 0;
      for (const WeightPart& part : buckets[i].parts) {
        ASSERT_EQ(part.name, own.at(parameter).name);
        ASSERT_EQ(part.begin[0], row);
        EXPECT_TRUE(
            at::equal(part.values, own[parameter].value.narrow(0, row, part.values.size(0))));
        size += static_cast<int64_t>(part.values.nbytes());
        row += part.values.size(0);
        if (row == own[parameter].value.size(0)) ++parameter, row = 0;
      }
      EXPECT_TRUE(size <= bytes ||
                  (buckets[i].parts.size() == 1 && buckets[i].parts[0].values.size(0) == 1))
          << size;
    }
    EXPECT_EQ(parameter, own.size());
  }
}

TEST(WeightStaging, TakesBucketsInAnyOrder) {
  const auto source = other_decoder(1);
  auto target = other_decoder(2);
  WeightStaging staging(target);
  Sealed all = sealed(source, 1, 200);
  ASSERT_GT(all.buckets.size(), 20u);
  std::reverse(all.buckets.begin(), all.buckets.end());
  for (const auto& bucket : all.buckets)
    staging.add(bucket);
  EXPECT_FALSE(equal_weights(source, target));
  EXPECT_EQ(weights_checksum(std::vector<uint64_t>{staging.check(all.commit)}),
            weights_checksum(all.commit.receipts));
  staging.apply();
  EXPECT_TRUE(equal_weights(source, target));
}

TEST(WeightStaging, OnTheCpuTakesTheMemoryOfWhatArrived) {
  const auto source = other_decoder(1);
  auto target = other_decoder(2);
  WeightStaging staging(target);
  const Sealed all = sealed(source, 1, 1 << 30);  // no parameter is cut
  std::map<std::string, const void*> arrived;
  for (const auto& bucket : all.buckets) {
    for (const WeightPart& part : bucket.parts)
      arrived[part.name] = part.values.const_data_ptr();
    staging.add(bucket);
  }
  staging.check(all.commit);
  staging.apply();
  for (const parallel::NamedParameter& parameter : target.parameters())
    EXPECT_EQ(parameter.value.const_data_ptr(), arrived.at(parameter.name)) << parameter.name;
}

TEST(WeightStaging, ALateBucketOfAnOlderVersionChangesNothing) {
  const auto source = other_decoder(1);
  auto target = other_decoder(2);
  WeightStaging staging(target);
  const Sealed late = sealed(other_decoder(3), 2, 4096), all = sealed(source, 3, 4096);
  staging.add(late.buckets.at(0));
  for (const auto& bucket : all.buckets)
    staging.add(bucket);
  test::expect_error(ErrorCode::kMismatch, "version 3 is staged already",
                     [&] { staging.add(late.buckets.at(1)); });
  staging.check(all.commit);
  staging.apply();
  EXPECT_TRUE(equal_weights(source, target));
}

TEST(WeightStaging, ADamagedBucketOfANewerVersionChangesNothing) {
  const auto source = other_decoder(1);
  auto target = other_decoder(2);
  WeightStaging staging(target);
  const Sealed all = sealed(source, 3, 4096);
  for (const auto& bucket : all.buckets)
    staging.add(bucket);
  WeightBucket damaged = sealed(other_decoder(3), 4, 4096).buckets.at(0);
  damaged.parts.at(0).checksum ^= 1;
  test::expect_error(ErrorCode::kCorrupt, "damaged", [&] { staging.add(damaged); });
  staging.check(all.commit);
  staging.apply();
  EXPECT_TRUE(equal_weights(source, target));
}

TEST(WeightStaging, ForgetsWhatLostSendersSent) {
  const auto source = other_decoder(3);
  auto target = other_decoder(2);
  WeightStaging staging(target);
  const Sealed all = sealed(source, 9, 4096);
  for (size_t i = 0; i < all.buckets.size(); ++i)
    staging.add(all.buckets[i], i == 0 ? "student/0" : "student/1");
  const auto forget_all_but = [&](const std::set<std::string>& connected) {
    return staging.forget_lost([&] { return connected; });
  };
  EXPECT_FALSE(forget_all_but({"student/0", "student/1", "student/2"}));
  EXPECT_TRUE(forget_all_but({"student/1"}));
  EXPECT_FALSE(staging.empty());
  test::expect_error(ErrorCode::kUnavailable, "before all of them are there",
                     [&] { staging.check(all.commit); });

  // What is sent again completes it.
  staging.add(all.buckets.at(0), "student/0");
  staging.check(all.commit);
  staging.apply();
  EXPECT_TRUE(staging.empty());
  EXPECT_TRUE(equal_weights(source, target));
}

TEST(WeightStaging, TakesABucketThatIsSentAgain) {
  const auto source = other_decoder(3);
  auto target = other_decoder(2);
  WeightStaging staging(target);
  const Sealed all = sealed(source, 9, 4096);
  for (int twice = 0; twice < 2; ++twice)
    for (const auto& bucket : all.buckets)
      staging.add(bucket, "student/0");
  staging.check(all.commit);
  staging.apply();
  EXPECT_TRUE(equal_weights(source, target));
}

// A damaged one does not.
TEST(WeightStaging, ABucketThatIsSentAgainDamagedLeavesTheFirst) {
  const auto source = other_decoder(3);
  auto target = other_decoder(2);
  WeightStaging staging(target);
  const Sealed all = sealed(source, 9, 4096);
  for (const auto& bucket : all.buckets)
    staging.add(bucket);
  WeightBucket damaged = all.buckets.at(0);
  damaged.parts.at(0).values = damaged.parts.at(0).values.add(1);
  test::expect_error(ErrorCode::kCorrupt, "damaged", [&] { staging.add(damaged); });
  staging.check(all.commit);
  staging.apply();
  EXPECT_TRUE(equal_weights(source, target));
}

TEST(WeightStaging, TakesNothingBetweenCheckAndApplyOrUncheck) {
  const auto source = other_decoder(3);
  auto target = other_decoder(2);
  WeightStaging staging(target);
  const Sealed all = sealed(source, 9, 4096), newer = sealed(other_decoder(4), 10, 4096);
  for (const auto& bucket : all.buckets)
    staging.add(bucket);
  staging.check(all.commit);
  EXPECT_EQ(staging.checked(), 9u);
  for (const Sealed* late : {&all, &newer})
    test::expect_error(ErrorCode::kUnavailable, "version 9 are committed",
                       [&] { staging.add(late->buckets.at(0)); });
  EXPECT_FALSE(staging.forget_lost([] { return std::set<std::string>(); }));

  staging.uncheck();
  EXPECT_EQ(staging.checked(), 0u);
  staging.add(all.buckets.at(0));
  staging.check(all.commit);
  staging.apply();
  EXPECT_EQ(staging.in_use(), 9u);
  EXPECT_TRUE(equal_weights(source, target));
  test::expect_error(ErrorCode::kMismatch, "version 9 is in use already",
                     [&] { staging.add(all.buckets.at(0)); });
  staging.add(newer.buckets.at(0));
}

// Whoever was not connected when its peers were counted may be by the time its bucket is there.
TEST(WeightStaging, DoesNotForgetWhoConnectsMeanwhile) {
  auto target = other_decoder(2);
  WeightStaging staging(target);
  const Sealed all = sealed(other_decoder(3), 9, 4096);
  staging.add(all.buckets.at(0), "student/0");
  std::future<void> added;
  EXPECT_TRUE(staging.forget_lost([&] {
    added = std::async(std::launch::async, [&] { staging.add(all.buckets.at(1), "student/1"); });
    added.wait_for(100ms);  // it waits for the end of this
    return std::set<std::string>();
  }));
  added.get();
  EXPECT_FALSE(staging.empty());
}

// Another thread adds sound buckets of the same version but other values all the time: what is
// applied is what was checked.
TEST(WeightStaging, WhatIsCheckedIsAppliedWhateverIsAddedMeanwhile) {
  const auto source = other_decoder(3);
  auto target = other_decoder(2);
  WeightStaging staging(target);
  std::atomic<uint64_t> version{1};
  std::atomic<bool> stop{false};
  auto intrudes = std::async(std::launch::async, [&] {
    WeightBucket bucket = sealed(other_decoder(4), 1, 4096).buckets.at(1);
    while (!stop) {
      bucket.version = version;
      test::thrown([&] { staging.add(bucket); });
    }
  });
  for (; version <= 50; ++version) {
    const Sealed all = sealed(source, version, 4096);
    for (const auto& bucket : all.buckets)
      staging.add(bucket);
    while (test::thrown([&] { staging.check(all.commit); }))
      staging.add(all.buckets.at(1));
    std::this_thread::sleep_for(1ms);
    staging.apply();
    EXPECT_TRUE(equal_weights(source, target)) << version;
  }
  stop = true;
  intrudes.get();
}

// Two billion pairs of parts take longer than a test may: each part must meet its neighbours only.
TEST(WeightStaging, ChecksAParameterThatCameInManyParts) {
  models::ModelConfig config = golden_decoder().config();
  config.vocab_size = 60'000;
  config.tie_word_embeddings = true;
  const auto source = models::Decoder::random(config, 1, at::kFloat);
  auto target = models::Decoder::random(config, 2, at::kFloat);
  WeightStaging staging(target);
  const Sealed all = sealed(source, 1, 1);
  ASSERT_GT(all.buckets.size(), 60'000u);
  for (const auto& bucket : all.buckets)
    staging.add(bucket);
  staging.check(all.commit);
  staging.apply();
  EXPECT_TRUE(equal_weights(source, target));
}

bool any_pair_overlaps(const std::vector<Box>& boxes) {
  for (size_t i = 0; i < boxes.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (intersection(boxes[i], boxes[j]).numel() > 0) return true;
  return false;
}

TEST(WeightBox, AnOverlapIsFoundBetweenBoxesThatAreNoNeighbours) {
  const Box left{{0, 0}, {10, 5}}, upper{{0, 5}, {3, 5}}, lower{{3, 4}, {7, 6}};
  EXPECT_TRUE(any_overlap({left, upper, lower}));
  EXPECT_FALSE(any_overlap({left, upper, {{3, 5}, {7, 5}}}));
  EXPECT_FALSE(any_overlap({left, {{2, 2}, {0, 5}}})) << "an empty box has no elements";
  EXPECT_TRUE(any_overlap({{{}, {}}, {{}, {}}})) << "one element twice";
}

TEST(WeightBox, OverlapsAreThoseOfAllPairs) {
  std::mt19937 random(3);
  const auto below = [&](int64_t limit) {
    return static_cast<int64_t>(random() % static_cast<uint32_t>(limit));
  };
  int found = 0;
  for (int round = 0; round < 2000; ++round) {
    const size_t dims = 1 + static_cast<size_t>(below(3));
    std::vector<Box> boxes(static_cast<size_t>(2 + below(5)));
    for (Box& box : boxes)
      for (size_t d = 0; d < dims; ++d) {
        box.begin.push_back(below(12));
        box.size.push_back(below(5));
      }
    const bool expected = any_pair_overlaps(boxes);
    found += expected ? 1 : 0;
    ASSERT_EQ(any_overlap(boxes), expected) << "round " << round;
  }
  EXPECT_GT(found, 100);
  EXPECT_LT(found, 1900);
}

}  // namespace
}  // namespace retort::roles

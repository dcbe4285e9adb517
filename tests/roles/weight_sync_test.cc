// Weights on their way to a generator: every damage is found before anything is replaced, and what
// arrives is bit for bit what left.
#include "roles/generator/weight_staging.h"

#include <algorithm>
#include <random>

#include "models/generation/score.h"
#include "roles/generator/weight_box.h"
#include "tests/roles/generator_fixture.h"
#include "tests/support/thrown.h"

namespace retort::roles {
namespace {

bool equal_weights(const models::Decoder& a, const models::Decoder& b) {
  const auto left = a.parameters(), right = b.parameters();
  return std::equal(
      left.begin(), left.end(), right.begin(), right.end(),
      [](const auto& x, const auto& y) { return x.name == y.name && at::equal(x.value, y.value); });
}

struct Sealed {
  std::vector<WeightBucket> buckets;
  CommitWeights commit;
};
// With values of their own, so that a test may damage them.
Sealed sealed(const models::Decoder& decoder, uint64_t version, int64_t bucket_bytes) {
  Sealed all{.buckets = make_weight_buckets(decoder, weight_slices(decoder), version, bucket_bytes),
             .commit = {.version = version, .receipts = {WeightReceipt{}}}};
  WeightReceipt& receipt = all.commit.receipts[0];
  for (WeightBucket& bucket : all.buckets) {
    receipt.checksum = seal(bucket, receipt.checksum);
    for (WeightPart& part : bucket.parts)
      part.values = part.values.clone();
  }
  receipt.buckets = static_cast<int64_t>(all.buckets.size());
  return all;
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
    staging.add(bucket, 0);
  EXPECT_FALSE(equal_weights(source, target));
  EXPECT_EQ(weights_checksum(std::vector<uint64_t>{staging.check(all.commit)}),
            weights_checksum(all.commit.receipts));
  staging.apply();
  EXPECT_TRUE(equal_weights(source, target));
}

TEST(WeightStaging, ALateBucketOfAnOlderVersionChangesNothing) {
  const auto source = other_decoder(1);
  auto target = other_decoder(2);
  WeightStaging staging(target);
  const Sealed late = sealed(other_decoder(3), 2, 4096), all = sealed(source, 3, 4096);
  staging.add(late.buckets.at(0), 1);
  for (const auto& bucket : all.buckets)
    staging.add(bucket, 1);
  test::expect_error(ErrorCode::kMismatch, "version 3 is staged already",
                     [&] { staging.add(late.buckets.at(1), 1); });
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
    staging.add(bucket, 1);
  WeightBucket damaged = sealed(other_decoder(3), 4, 4096).buckets.at(0);
  damaged.parts.at(0).checksum ^= 1;
  test::expect_error(ErrorCode::kCorrupt, "damaged", [&] { staging.add(damaged, 1); });
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
    staging.add(all.buckets[i], 1, i == 0 ? "student/0" : "student/1");
  EXPECT_FALSE(staging.forget_lost({"student/0", "student/1", "student/2"}));
  EXPECT_TRUE(staging.forget_lost({"student/1"}));
  EXPECT_FALSE(staging.empty());
  test::expect_error(ErrorCode::kUnavailable, "before all of them are there",
                     [&] { staging.check(all.commit); });

  // What is sent again completes it.
  staging.add(all.buckets.at(0), 1, "student/0");
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
      staging.add(bucket, 1, "student/0");
  staging.check(all.commit);
  staging.apply();
  EXPECT_TRUE(equal_weights(source, target));
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
    staging.add(bucket, 0);
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

struct Damage {
  std::string name;
  std::function<void(Sealed&)> spoil;
  ErrorCode code;
  std::string message;
};

void reseal(Sealed& all) {
  uint64_t& checksum = all.commit.receipts[0].checksum;
  checksum = 0;
  for (auto& bucket : all.buckets)
    checksum = seal(bucket, checksum);
}

WeightPart& part_of(Sealed& all, const std::string& parameter) {
  for (auto& bucket : all.buckets)
    for (auto& part : bucket.parts)
      if (part.name.ends_with(parameter)) return part;
  throw std::out_of_range(parameter);
}

std::vector<Damage> damages() {
  using S = Sealed;
  const auto part = [](S& s) -> WeightPart& { return s.buckets.at(1).parts.at(0); };
  return {
      {"byte", [=](S& s) { static_cast<char*>(part(s).values.mutable_data_ptr())[3] ^= 1; },
       ErrorCode::kCorrupt, "checksum"},
      {"row", [=](S& s) { part(s).begin[0] += 1; }, ErrorCode::kCorrupt, ""},
      {"swapped_names",
       [](S& s) {
         std::swap(part_of(s, "layers.0.mlp.gate_proj.weight").name,
                   part_of(s, "layers.0.mlp.up_proj.weight").name);
       },
       ErrorCode::kCorrupt, "checksum"},
      {"unknown", [=](S& s) { part(s).name = "model.layers.9.mlp", reseal(s); },
       ErrorCode::kCorrupt, "no such parameter"},
      {"shape",
       [=](S& s) {
         part(s).values = part(s).values.repeat({1, 2}), reseal(s);
       },
       ErrorCode::kCorrupt, "shape"},
      {"dtype", [=](S& s) { part(s).values = part(s).values.to(at::kDouble), reseal(s); },
       ErrorCode::kCorrupt, "dtype"},
      {"rows_outside", [=](S& s) { part(s).begin[0] = 1000, reseal(s); }, ErrorCode::kCorrupt,
       "shape"},
      {"no_values", [=](S& s) { part(s).values = at::Tensor(); }, ErrorCode::kCorrupt, "shape"},
      {"missing_bucket", [](S& s) { s.buckets.erase(s.buckets.begin() + 1); },
       ErrorCode::kUnavailable, "before all of them"},
      {"double_rows",
       [](S& s) {
         s.buckets.push_back(s.buckets[1]);
         s.buckets.back().index = static_cast<int64_t>(s.buckets.size()) - 1;
         ++s.commit.receipts[0].buckets;
         reseal(s);
       },
       ErrorCode::kCorrupt, "came twice"},
      {"missing_rows",
       [](S& s) {
         s.buckets.at(1).parts.clear();
         reseal(s);
       },
       ErrorCode::kCorrupt, "missing"},
      {"missing_end",
       [](S& s) {
         s.buckets.back().parts.clear();
         reseal(s);
       },
       ErrorCode::kCorrupt, "incomplete"},
      {"other_sum", [](S& s) { s.commit.receipts[0].checksum ^= 1; }, ErrorCode::kCorrupt,
       "sender's"},
      {"other_version", [](S& s) { s.commit.version += 1; }, ErrorCode::kUnavailable,
       "before all of them"},
      {"old_version",
       [](S& s) {
         for (auto& b : s.buckets)
           b.version = 1;
       },
       ErrorCode::kMismatch, "in use already"},
  };
}

// Through the generator: the error is the stated one, the old weights stay in use, and an undamaged
// push gets through afterwards.
class DamagedWeights : public GeneratorFixture, public testing::WithParamInterface<Damage> {};

TEST_P(DamagedWeights, AreRefusedAndTheOldStayInUse) {
  const auto old_weights = other_decoder(2), new_weights = other_decoder(3);
  auto student = make_client(old_weights, client);
  beside([&] { student->wait_pushed(student->push(old_weights, 1, 1 << 20, false)); });
  Sealed all = sealed(new_weights, 2, 200);
  GetParam().spoil(all);
  const auto send = [&] {
    for (const auto& bucket : all.buckets)
      client.call("generator/0", kWeightsBucket, bucket).get(Deadline::after(30s));
    client.call("generator/0", kWeightsCommit, all.commit).get(Deadline::after(30s));
  };
  test::expect_error(GetParam().code, GetParam().message, [&] { beside(send); });
  EXPECT_EQ(generator.weight_version(), 1u);
  const GenerateRequest before = generate_request(1, 1, prompts),
                        after = generate_request(2, 3, prompts);
  expect_drawn_by(old_weights, beside([&] { return student->receive(student->send(before)); }),
                  before, prompts);
  beside([&] { student->wait_pushed(student->push(new_weights, 3, 200, false)); });
  expect_drawn_by(new_weights, beside([&] { return student->receive(student->send(after)); }),
                  after, prompts);
}
INSTANTIATE_TEST_SUITE_P(Table, DamagedWeights, testing::ValuesIn(damages()),
                         [](const auto& info) { return info.param.name; });

class WeightPush : public GeneratorFixture {};

TEST_F(WeightPush, CutIntoRowsLeavesEqualBits) {
  const auto weights = other_decoder(4);
  auto student = make_client(weights, client);
  const std::vector<std::vector<int32_t>> rows{{1, 2, 3, 4, 5, 6}, {60, 61, 1, 30}};
  const std::vector<int64_t> lengths(rows.size(), 1);
  uint64_t version = 0;
  for (const int64_t bytes : {1, 100, 4096, 1 << 20}) {
    const uint64_t sent = beside([&] {
      PendingPush push = student->push(weights, ++version, bytes, false);
      const uint64_t size = push.bytes;
      student->wait_pushed(std::move(push));
      return size;
    });
    uint64_t expected_bytes = 0;
    for (const auto& parameter : weights.parameters())
      expected_bytes += parameter.value.nbytes();
    EXPECT_EQ(sent, expected_bytes);
    EXPECT_EQ(generator.weight_version(), version);
    ForwardRequest request{.request_id = 1,
                           .step = 1,
                           .input_ids = at::tensor({1, 2, 3, 4, 5, 6, 60, 61, 1, 30}, at::kInt),
                           .cu_seqlens = at::tensor({0, 6, 10}, at::kInt),
                           .positions = at::tensor({0, 1, 2, 3, 4, 6, 7, 8}, at::kInt),
                           .spec = {.kind = PayloadKind::kTargetLogProbs}};
    const Payload scored = beside([&] {
      return client.call("generator/0", kGeneratorScore, request).get(Deadline::after(30s));
    });
    const auto own = models::score(weights, {.sequences = rows, .prompt_lengths = lengths});
    std::vector<float> flat = own[0];
    flat.insert(flat.end(), own[1].begin(), own[1].end());
    EXPECT_TRUE(at::equal(scored.logps, at::tensor(flat, at::kFloat))) << bytes;
    EXPECT_EQ(scored.label.weight_version, version);
  }
}

// The caller may have missed the first reply.
TEST_F(WeightPush, ARepeatedCommitOfTheWeightsInUseIsAnsweredAgain) {
  const Sealed all = sealed(other_decoder(4), 1, 4096);
  const auto commit = [&](const CommitWeights& request) {
    return client.call("generator/0", kWeightsCommit, request).get(Deadline::after(30s));
  };
  beside([&] {
    for (const auto& bucket : all.buckets)
      client.call("generator/0", kWeightsBucket, bucket).get(Deadline::after(30s));
    const CommitReply first = commit(all.commit), again = commit(all.commit);
    EXPECT_EQ(again.version, 1u);
    EXPECT_EQ(again.checksum, first.checksum);

    // Other weights of that version are not in use, and are not there.
    CommitWeights other = all.commit;
    other.receipts.at(0).checksum ^= 1;
    test::expect_error(ErrorCode::kUnavailable, "before all of them", [&] { commit(other); });
  });
  EXPECT_EQ(generator.weight_version(), 1u);
}

// The second replica claims to have taken over something else.
TEST_F(WeightPush, AReplicaThatReportsOtherWeightsIsNamed) {
  const auto weights = other_decoder(4);
  rpc::Agent liar({.name = "generator/1", .secret = "s"});
  liar.serve(kGeneratorInfo, queue, [&](Empty, const rpc::CallContext&) {
    return GeneratorInfo{
        .name = "generator/1",
        .vocabulary_fingerprint = models::Tokenizer::load(golden_model()).vocabulary_fingerprint(),
        .parameters = parameters_hash(weights),
        .dtype = {},
        .slices = weight_slices(weights)};
  });
  liar.serve(kWeightsBucket, queue, [](WeightBucket, const rpc::CallContext&) { return Empty{}; });
  liar.serve(kWeightsCommit, queue, [](CommitWeights r, const rpc::CallContext&) {
    return CommitReply{.version = r.version, .checksum = weights_checksum(r.receipts) ^ 1};
  });
  client.connect("generator/1", liar.address(), Deadline::after(30s));
  auto student = make_client(weights, client, {"generator/0", "generator/1"});
  test::expect_error(ErrorCode::kMismatch, "generator/1", [&] {
    beside([&] { student->wait_pushed(student->push(weights, 1, 4096, false)); });
  });
  EXPECT_EQ(generator.weight_version(), 1u);  // the honest one has them
}

}  // namespace
}  // namespace retort::roles

// Weights on their way to a generator: every damage is found before anything is replaced, and what
// arrives is bit for bit what left.
#include <atomic>
#include <future>

#include "models/generation/score.h"
#include "roles/generator/weight_buckets.h"
#include "roles/generator/weight_checksum.h"
#include "tests/roles/generator_fixture.h"
#include "tests/roles/sealed_weights.h"
#include "tests/support/thrown.h"

namespace retort::roles {
namespace {

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

// Buckets go on arriving while samples are drawn, and change no bit of them.
TEST_F(WeightPush, ArrivesWhileSamplesAreDrawn) {
  const auto weights = golden_decoder(), new_weights = other_decoder(4);
  auto student = make_client(weights, client);
  GenerateRequest request = generate_request(1, 0, prompts, 4, 60);
  request.draw.eos_token_ids.clear();
  PendingSamples pending = queued(*student, request);
  ASSERT_TRUE(generator.work());

  const Sealed all = sealed(new_weights, 1, 200);
  std::atomic<bool> drawn{false};
  auto sends = std::async(std::launch::async, [&] {
    do {
      for (const auto& bucket : all.buckets)
        client.call("generator/0", kWeightsBucket, bucket).get(Deadline::after(30s));
    } while (!drawn);
  });
  draw_all();  // handles no calls
  drawn = true;
  sends.get();
  expect_drawn_by(weights, received(*student, std::move(pending)), request, prompts);

  auto commit = client.call("generator/0", kWeightsCommit, all.commit);
  EXPECT_EQ(beside([&] { return commit.get(Deadline::after(30s)).version; }), 1u);
  const GenerateRequest after = generate_request(2, 1, prompts);
  expect_drawn_by(new_weights, beside([&] { return student->receive(student->send(after)); }),
                  after, prompts);
}

// What its handler throws reaches the sender, and the thread of the buckets goes on.
TEST_F(WeightPush, ABucketThatIsRefusedLeavesWhatIsStaged) {
  const auto new_weights = other_decoder(4);
  const Sealed all = sealed(new_weights, 1, 4096);
  const auto send = [&](const WeightBucket& bucket) {
    client.call("generator/0", kWeightsBucket, bucket).get(Deadline::after(30s));
  };
  send(all.buckets.at(0));
  WeightBucket damaged = all.buckets.at(0);
  damaged.parts.at(0).values = damaged.parts.at(0).values.add(1);
  test::expect_error(ErrorCode::kCorrupt, "the checksum differs", [&] { send(damaged); });
  for (size_t i = 1; i < all.buckets.size(); ++i)
    send(all.buckets[i]);
  beside([&] { client.call("generator/0", kWeightsCommit, all.commit).get(Deadline::after(30s)); });
  auto student = make_client(new_weights, client);
  const GenerateRequest request = generate_request(1, 1, prompts);
  expect_drawn_by(new_weights, beside([&] { return student->receive(student->send(request)); }),
                  request, prompts);
}

// The second replica claims to have taken over something else.
TEST_F(WeightPush, AReplicaThatReportsOtherWeightsIsNamed) {
  const auto weights = other_decoder(4);
  rpc::Agent liar({.name = "generator/1", .secret = "s"});
  liar.serve(kGeneratorInfo, queue, [&](Empty, const rpc::CallContext&) {
    return GeneratorInfo{
        .name = "generator/1",
        .vocabulary_fingerprint = models::Tokenizer::load(golden_model()).vocabulary_fingerprint(),
        .parameters = parameters_hash(weights, nullptr),
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

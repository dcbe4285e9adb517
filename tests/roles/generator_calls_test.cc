// A busy generator: calls between two forward passes, requests that are drawn together, and that
// neither changes what is drawn.
#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "roles/generator/weight_buckets.h"
#include "roles/generator/weight_checksum.h"
#include "tests/roles/generator_fixture.h"
#include "tests/support/wait_until.h"

namespace retort::roles {
namespace {

class BusyGeneratorTest : public GeneratorFixture {
 protected:
  // Drawn for `tokens` steps, whatever it says.
  GenerateRequest lasting(uint64_t id, int64_t tokens) const {
    GenerateRequest request = generate_request(id, 0, prompts, 2, tokens);
    request.draw.eos_token_ids.clear();
    return request;
  }

  const models::Decoder weights = golden_decoder();
};

TEST_F(BusyGeneratorTest, HandlesAllCallsThatWaitBetweenTwoForwards) {
  auto student = make_client(weights, client);
  const GenerateRequest request = lasting(1, 40);
  PendingSamples pending = queued(*student, request);
  ASSERT_TRUE(generator.work());

  constexpr size_t kCalls = 60;
  std::vector<Future<GeneratorInfo>> replies;
  for (size_t i = 0; i < kCalls; ++i)
    replies.push_back(client.call("generator/0", kGeneratorInfo, {}));
  ASSERT_TRUE(test::wait_until([&] { return queue->size() == kCalls; }));

  // stop() is asked before every forward.
  int asked = 0;
  generator.lead(
      *queue, [&] { return ++asked > 1; }, {}, 1h);
  EXPECT_EQ(queue->size(), 0u);
  for (Future<GeneratorInfo>& reply : replies)
    reply.get(Deadline::after(30s));
  EXPECT_EQ(generator.requests_served(), 0) << "it was to be in work all the time";
  draw_all();
  expect_drawn_by(weights, received(*student, std::move(pending)), request, prompts);
}

TEST_F(BusyGeneratorTest, DrawsRequestsThatWaitTogether) {
  auto student = make_client(weights, client);
  const GenerateRequest lengthy = lasting(1, 40), brief = lasting(2, 3);
  PendingSamples for_lengthy = queued(*student, lengthy), for_brief = queued(*student, brief);
  for (int steps = 0; generator.requests_served() == 0; ++steps) {
    ASSERT_LT(steps, 20) << "the short request waits for the long one";
    ASSERT_TRUE(generator.work());
  }
  expect_drawn_by(weights, received(*student, std::move(for_brief)), brief, prompts);
  EXPECT_EQ(generator.requests_served(), 1);
  draw_all();
  expect_drawn_by(weights, received(*student, std::move(for_lengthy)), lengthy, prompts);
}

TEST_F(BusyGeneratorTest, TheBitsDoNotDependOnWhenCallsAreHandled) {
  auto student = make_client(weights, client);
  std::vector<WeightBucket> buckets = make_weight_buckets(weights, weight_slices(weights), 1, 1024);
  const Prompts others{{11, 12}, {13}};
  uint64_t id = 1;
  for (const int forwards : {0, 1, 2, 5, 11}) {
    const GenerateRequest first = generate_request(id, 0, prompts),
                          second = generate_request(id + 1, 0, others, 3);
    PendingSamples for_first = queued(*student, first);
    for (int i = 0; i < forwards; ++i)
      generator.work();

    // In the middle of the first: a bucket, a call for information, the second request.
    WeightBucket bucket = buckets.at(id / 2);
    seal(bucket, 0);
    auto staged = client.call("generator/0", kWeightsBucket, bucket);
    auto info = client.call("generator/0", kGeneratorInfo, {});
    beside(
        [&] {
          staged.get(Deadline::after(30s));
          info.get(Deadline::after(30s));
        },
        /*draw=*/false);
    PendingSamples for_second = queued(*student, second);
    draw_all();
    expect_drawn_by(weights, received(*student, std::move(for_first)), first, prompts);
    expect_drawn_by(weights, received(*student, std::move(for_second)), second, others);
    id += 2;
  }
}

// Requests that are drawn together hold new weights back together.
TEST_F(BusyGeneratorTest, NewWeightsWaitForAllRequestsInWork) {
  const models::Decoder new_weights = other_decoder(7);
  auto student = make_client(weights, client);
  const GenerateRequest lengthy = lasting(1, 40), brief = lasting(2, 3),
                        coming = generate_request(3, 1, prompts);
  PendingSamples for_lengthy = queued(*student, lengthy), for_brief = queued(*student, brief),
                 for_coming = queued(*student, coming);
  ASSERT_TRUE(generator.work());
  PendingPush push = pushed(*student, new_weights, 1, false);
  while (generator.weight_version() == 0)
    ASSERT_TRUE(generator.work());
  EXPECT_EQ(generator.requests_served(), 2);
  draw_all();
  student->wait_pushed(std::move(push));
  expect_drawn_by(weights, received(*student, std::move(for_lengthy)), lengthy, prompts);
  expect_drawn_by(weights, received(*student, std::move(for_brief)), brief, prompts);
  expect_drawn_by(new_weights, received(*student, std::move(for_coming)), coming, prompts);
}

// One sequence at a time, so that samples end one after the other.
class StreamingTest : public GeneratorFixture {
 protected:
  StreamingTest() : GeneratorFixture({.num_blocks = 64, .max_sequences = 1}) {}

  // The indices in the order in which they were heard of.
  std::vector<int64_t> heard() {
    std::lock_guard lock(mutex_);
    return heard_;
  }
  SampleListener listener() {
    return [this](const IndexedCompletion& one) {
      std::lock_guard lock(mutex_);
      heard_.push_back(one.index);
    };
  }

  const models::Decoder weights = golden_decoder();

 private:
  std::mutex mutex_;
  std::vector<int64_t> heard_;
};

TEST_F(StreamingTest, TheFirstSampleArrivesBeforeTheLastIsDrawn) {
  auto student = make_client(weights, client);
  const GenerateRequest request = generate_request(1, 0, prompts);
  PendingSamples pending = queued(*student, request, listener());
  while (generator.tokens_drawn() == 0)
    ASSERT_TRUE(generator.work());
  ASSERT_TRUE(test::wait_until([&] { return heard().size() == 1; }));
  EXPECT_EQ(generator.requests_served(), 0);
  EXPECT_FALSE(pending.reply.ready());

  draw_all();
  expect_drawn_by(weights, received(*student, std::move(pending)), request, prompts);
  std::vector<int64_t> all = heard();
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, (std::vector<int64_t>{0, 1, 2, 3, 4, 5})) << "each of them once";
}

// More requests at a time than one caller may have, and more than there are blocks for.
TEST_F(BusyGeneratorTest, SixtyFourCallersGetTheirOwn) {
  constexpr uint64_t kCallers = 64, kEach = 5;
  std::vector<std::unique_ptr<rpc::Agent>> agents;
  std::vector<std::unique_ptr<GeneratorClient>> clients;
  for (uint64_t i = 0; i < kCallers; ++i) {
    agents.push_back(std::make_unique<rpc::Agent>(
        rpc::Agent::Options{.name = "student/" + std::to_string(i + 1), .secret = "s"}));
    agents.back()->connect("generator/0", server.address(), Deadline::after(30s));
    clients.push_back(make_client(weights, *agents.back()));
  }

  // Callers count their requests by themselves, so all have the same ids.
  const auto request_of = [&](uint64_t caller, uint64_t id) {
    GenerateRequest request = generate_request(id, 0, {{static_cast<int32_t>(caller % 60)}}, 1, 3);
    request.sample_ids = at::tensor(std::vector<int64_t>{static_cast<int64_t>(caller)}, at::kLong);
    return request;
  };
  std::vector<PendingSamples> pending;
  for (uint64_t id = 1; id <= kEach; ++id)
    for (uint64_t caller = 0; caller < kCallers; ++caller)
      pending.push_back(clients[caller]->send(request_of(caller, id)));

  size_t next = 0;
  for (uint64_t id = 1; id <= kEach; ++id)
    for (uint64_t caller = 0; caller < kCallers; ++caller) {
      const Samples samples =
          beside([&] { return clients[caller]->receive(std::move(pending[next])); });
      ++next;
      expect_drawn_by(weights, samples, request_of(caller, id),
                      {{static_cast<int32_t>(caller % 60)}});
    }
  EXPECT_EQ(generator.requests_served(), static_cast<int64_t>(kCallers * kEach));
}

}  // namespace
}  // namespace retort::roles

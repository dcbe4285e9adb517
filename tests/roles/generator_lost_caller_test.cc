// What a caller leaves at a generator when it goes away, and what one caller may take of it.
#include <algorithm>
#include <memory>

#include "roles/generator/weight_buckets.h"
#include "roles/generator/weight_checksum.h"
#include "tests/roles/generator_fixture.h"
#include "tests/support/thrown.h"
#include "tests/support/wait_until.h"

namespace retort::roles {
namespace {

using test::code_of;

class LostCallerTest : public GeneratorFixture {
 protected:
  using AgentPtr = std::unique_ptr<rpc::Agent>;

  AgentPtr connected() {
    auto agent = std::make_unique<rpc::Agent>(rpc::Agent::Options{.name = kName, .secret = "s"});
    agent->connect("generator/0", server.address(), Deadline::after(30s));
    return agent;
  }
  // Until the generator's agent has noticed.
  void lose(rpc::Agent& agent) {
    agent.close();
    agent.join();
    ASSERT_TRUE(test::wait_until(
        [&] {
          const auto peers = server.peers();
          return std::find(peers.begin(), peers.end(), kName) == peers.end();
        },
        30s, 1ms));
  }
  // Without collecting.
  void submit(rpc::Agent& from, const GenerateRequest& request) {
    auto reply = from.call("generator/0", kGenerateSubmit, request);
    handle(1);
    reply.get(Deadline::after(30s));
  }
  void send_bucket(rpc::Agent& from, WeightBucket bucket) {
    seal(bucket, 0);
    from.call("generator/0", kWeightsBucket, bucket).get(Deadline::after(30s));
  }

  static constexpr const char* kName = "student/1";
  const models::Decoder old_weights = golden_decoder(), new_weights = other_decoder(7);
};

TEST_F(LostCallerTest, OneCallerTakesNoRoomFromAnother) {
  const AgentPtr greedy = connected();
  auto student = make_client(old_weights, client);
  for (uint64_t id = 1; id <= RequestTable::kMaxPerCaller; ++id)
    submit(*greedy, generate_request(id, 9, {{1}}, 1));
  EXPECT_EQ(code_of([&] { submit(*greedy, generate_request(1000, 9, {{1}}, 1)); }),
            ErrorCode::kResourceExhausted);
  const GenerateRequest request = generate_request(1, 0, prompts);
  const Samples samples = beside([&] { return student->receive(student->send(request)); });
  expect_drawn_by(old_weights, samples, request, prompts);
}

TEST_F(LostCallerTest, ItsUncollectedRequestsAreForgotten) {
  const GenerateRequest done = generate_request(1, 0, prompts),
                        waiting = generate_request(2, 9, prompts),
                        in_work = generate_request(3, 0, prompts, 2, 40);
  AgentPtr lost = connected();
  submit(*lost, done);
  submit(*lost, waiting);
  submit(client, done);
  draw_all();
  EXPECT_EQ(generator.requests_served(), 2);
  submit(*lost, in_work);
  ASSERT_TRUE(generator.work());
  ASSERT_EQ(generator.requests_served(), 2);

  lose(*lost);
  EXPECT_FALSE(generator.work()) << "a request of a caller that is lost is still in work";

  // Somebody of the same name may use the ids again.
  lost = connected();
  for (const GenerateRequest& request : {done, waiting, in_work})
    submit(*lost, request);

  // What the other caller did not collect is still there.
  auto kept = client.call("generator/0", kGenerateCollect, CollectRequest{done.request_id});
  handle(1);
  expect_drawn_by(old_weights, kept.get(Deadline::after(30s)), done, prompts);
}

// Its end need not have been noticed: the name is connected all the time.
TEST_F(LostCallerTest, ItsRequestsAreForgottenWhenItWasReplaced) {
  const AgentPtr before = connected();
  submit(*before, generate_request(1, 0, {{1}}, 1, 40));
  ASSERT_TRUE(generator.work());
  submit(*before, generate_request(2, 9, {{2}}, 1));

  const GenerateRequest request = generate_request(1, 0, prompts);
  const AgentPtr after = connected();
  submit(*after, request);
  EXPECT_EQ(generator.num_requests(), 1u);
  draw_all();
  auto samples = after->call("generator/0", kGenerateCollect, CollectRequest{request.request_id});
  handle(1);
  expect_drawn_by(old_weights, samples.get(Deadline::after(30s)), request, prompts);
}

TEST_F(LostCallerTest, ItsCommitThatWaitsIsGivenUp) {
  const GenerateRequest old_request = generate_request(1, 0, prompts, 2, 40),
                        new_request = generate_request(2, 1, prompts);
  auto student = make_client(old_weights, client);
  const AgentPtr agent = connected();
  auto lost = make_client(old_weights, *agent);
  PendingSamples for_old = queued(*student, old_request);
  ASSERT_TRUE(generator.work());
  const PendingPush given_up = pushed(*lost, other_decoder(8), 1, false);
  ASSERT_EQ(generator.weight_version(), 0u);
  lose(*agent);
  ASSERT_TRUE(generator.work());

  // The same version from somebody else, while the request is still in work.
  PendingPush push = pushed(*student, new_weights, 1, false);
  EXPECT_EQ(generator.weight_version(), 0u);
  draw_all();
  student->wait_pushed(std::move(push));
  expect_drawn_by(old_weights, received(*student, std::move(for_old)), old_request, prompts);
  const Samples samples = beside([&] { return student->receive(student->send(new_request)); });
  expect_drawn_by(new_weights, samples, new_request, prompts);
}

TEST_F(LostCallerTest, ItsStagedWeightsAreThrownAway) {
  auto student = make_client(old_weights, client);
  const auto first_bucket =
      make_weight_buckets(other_decoder(8), weight_slices(old_weights), 1, 4096).front();
  const AgentPtr lost = connected();
  send_bucket(*lost, first_bucket);
  EXPECT_FALSE(generator.work());
  lose(*lost);
  EXPECT_FALSE(generator.work());
  beside([&] { student->wait_pushed(student->push(new_weights, 1, 4096, false)); });
  EXPECT_EQ(generator.weight_version(), 1u);
}

}  // namespace
}  // namespace retort::roles

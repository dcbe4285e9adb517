// The generator behind real RPC: what it draws, in which order, with which weights, and what it
// refuses.
#include "roles/generator/server.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include "models/ops/packed.h"
#include "tests/roles/ask_teacher.h"
#include "tests/roles/generator_fixture.h"
#include "tests/support/thrown.h"
#include "tests/support/wait_until.h"

namespace retort::roles {
namespace {

using test::code_of;

class GeneratorTest : public GeneratorFixture {
 protected:
  const models::Decoder old_weights = golden_decoder(), new_weights = other_decoder(7);
};

TEST_F(GeneratorTest, DrawsWhatTheEngineDraws) {
  auto student = make_client(old_weights, client);
  const GenerateRequest request = generate_request(1, 0, prompts);
  const Samples samples = beside([&] { return student->receive(student->send(request)); });
  expect_drawn_by(old_weights, samples, request, prompts);
  EXPECT_TRUE(at::equal(samples.indices, at::arange(6, at::kInt))) << "in the order of the request";
  EXPECT_EQ(samples.generator, "generator/0");
  EXPECT_EQ(generator.requests_served(), 1);
  EXPECT_EQ(generator.tokens_drawn(), samples.token_ids.numel());
}

TEST_F(GeneratorTest, ServesTwoClientsWithEqualRequestIds) {
  rpc::Agent second_agent({.name = "student/1", .secret = "s"});
  second_agent.connect("generator/0", server.address(), Deadline::after(30s));
  auto first = make_client(old_weights, client), second = make_client(old_weights, second_agent);
  const Prompts others{{11, 12}, {13}};
  const GenerateRequest a = generate_request(7, 0, prompts), b = generate_request(7, 0, others, 3);
  PendingSamples for_a = queued(*first, a);
  generator.work();  // a is begun when b arrives
  PendingSamples for_b = queued(*second, b);
  draw_all();
  expect_drawn_by(old_weights, received(*second, std::move(for_b)), b, others);
  expect_drawn_by(old_weights, received(*first, std::move(for_a)), a, prompts);
}

TEST_F(GeneratorTest, ARequestForComingWeightsWaitsForThem) {
  auto student = make_client(old_weights, client);
  const GenerateRequest coming = generate_request(1, 4, prompts),
                        now = generate_request(2, 0, prompts);
  PendingSamples waiting = queued(*student, coming);
  EXPECT_FALSE(generator.work());
  PendingSamples served = queued(*student, now);  // it does not block what comes behind it
  draw_all();
  EXPECT_FALSE(waiting.reply.ready());
  expect_drawn_by(old_weights, received(*student, std::move(served)), now, prompts);
  beside([&] { student->wait_pushed(student->push(new_weights, 4, 1 << 20, false)); });
  draw_all();
  expect_drawn_by(new_weights, received(*student, std::move(waiting)), coming, prompts);
}

TEST_F(GeneratorTest, ARequestForReplacedWeightsIsRefused) {
  auto student = make_client(old_weights, client);
  beside([&] { student->wait_pushed(student->push(new_weights, 3, 1 << 20, false)); });
  PendingSamples late = queued(*student, generate_request(1, 2, prompts));
  draw_all();
  const Error error = test::error_of([&] { received(*student, std::move(late)); });
  EXPECT_EQ(error.code(), ErrorCode::kMismatch);
  const std::string message = error.what();
  EXPECT_NE(message.find("version 2 were replaced by version 3"), std::string::npos) << message;
  EXPECT_NE(message.find("generator/0"), std::string::npos) << message;
}

// The heart of weight sync: new weights arrive in the middle of a request, and no completion sees
// both.
TEST_F(GeneratorTest, NewWeightsWaitForSamplesInWork) {
  auto student = make_client(old_weights, client);
  const GenerateRequest active = generate_request(1, 0, prompts),
                        next = generate_request(2, 0, {{20, 21}}),
                        coming = generate_request(3, 1, prompts);
  PendingSamples for_active = queued(*student, active), for_coming = queued(*student, coming);
  for (int i = 0; i < 4; ++i)
    ASSERT_TRUE(generator.work());  // in the middle of `active`
  ASSERT_FALSE(for_active.reply.ready());
  PendingSamples for_next = queued(*student, next);
  PendingPush push = pushed(*student, new_weights, 1, false);
  EXPECT_EQ(generator.weight_version(), 0u);
  EXPECT_FALSE(push.replies.at(0).ready());
  while (generator.weight_version() == 0) {
    ASSERT_FALSE(for_coming.reply.ready());
    ASSERT_TRUE(generator.work());
  }
  // both requests for the old weights, also the one that was not begun
  EXPECT_EQ(generator.requests_served(), 2);
  draw_all();
  student->wait_pushed(std::move(push));
  expect_drawn_by(old_weights, received(*student, std::move(for_active)), active, prompts);
  expect_drawn_by(old_weights, received(*student, std::move(for_next)), next, {{20, 21}});
  expect_drawn_by(new_weights, received(*student, std::move(for_coming)), coming, prompts);
}

TEST_F(GeneratorTest, NewWeightsWithAbortEndSamplesInWork) {
  auto student = make_client(old_weights, client);
  const GenerateRequest coming = generate_request(3, 1, prompts);
  PendingSamples active = queued(*student, generate_request(1, 0, prompts)),
                 waiting = queued(*student, generate_request(2, 0, prompts)),
                 kept = queued(*student, coming);
  for (int i = 0; i < 4; ++i)
    ASSERT_TRUE(generator.work());
  PendingPush push = pushed(*student, new_weights, 1, true);
  EXPECT_EQ(code_of([&] { received(*student, std::move(active)); }), ErrorCode::kCancelled);
  EXPECT_EQ(code_of([&] { received(*student, std::move(waiting)); }), ErrorCode::kCancelled);
  draw_all();
  student->wait_pushed(std::move(push));
  expect_drawn_by(new_weights, received(*student, std::move(kept)), coming, prompts);
  EXPECT_EQ(generator.requests_served(), 1);
}

// Buckets of the next version must not replace what a waiting commit has checked.
TEST_F(GeneratorTest, TakesNoBucketsWhileACommitWaits) {
  auto student = make_client(old_weights, client);
  const GenerateRequest old_request = generate_request(1, 0, prompts),
                        new_request = generate_request(2, 1, prompts);
  PendingSamples for_old = queued(*student, old_request);
  generator.work();
  PendingPush push = pushed(*student, new_weights, 1, false);
  const auto third = other_decoder(8);
  EXPECT_EQ(code_of([&] { pushed(*student, third, 2, false); }), ErrorCode::kUnavailable);
  draw_all();
  student->wait_pushed(std::move(push));
  EXPECT_EQ(generator.weight_version(), 1u);
  received(*student, std::move(for_old));
  const Samples samples = beside([&] { return student->receive(student->send(new_request)); });
  expect_drawn_by(new_weights, samples, new_request, prompts);
}

TEST_F(GeneratorTest, RefusesRequestsThatDoNotFitTogether) {
  const auto submit = [&](const GenerateRequest& request) {
    auto reply = client.call("generator/0", kGenerateSubmit, request);
    handle(1);
    reply.get(Deadline::after(30s));
  };
  const auto refused = [&](const std::function<void(GenerateRequest&)>& spoil) {
    GenerateRequest request = generate_request(1, 0, prompts);
    spoil(request);
    return code_of([&] { submit(request); });
  };

  // Numbers of completions, of which four prompts would have so many that the product overflows.
  using R = GenerateRequest;
  EXPECT_EQ(refused([](R& r) { r.num_generations = 3; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused([](R& r) { r.num_generations = 0; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused([](R& r) {
              r.prompt_ids = at::tensor({1, 2, 3, 4}, at::kInt);
              r.cu_seqlens = at::tensor({0, 1, 2, 3, 4}, at::kInt);
              r.num_generations = int64_t{1} << 62;
              r.sample_ids = at::empty({0}, at::kLong);
            }),
            ErrorCode::kInvalidArgument);

  // Tensors of another dtype, or that make no pack.
  EXPECT_EQ(refused([](R& r) { r.sample_ids = r.sample_ids.to(at::kInt); }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused([](R& r) { r.sample_ids = at::Tensor(); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused([](R& r) {
              r.cu_seqlens = at::tensor({0, 5, 3, 9}, at::kInt);
            }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused([](R& r) {
              r.cu_seqlens = at::tensor({0, 3, 8, 10}, at::kInt);
            }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused([](R& r) { r.prompt_ids = r.prompt_ids.to(at::kLong); }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused([](R& r) { r.continues = -1; }), ErrorCode::kInvalidArgument);

  // One that is there already, and one too many.
  submit(generate_request(1, 9, prompts));
  EXPECT_EQ(refused([](R&) {}), ErrorCode::kInvalidArgument);  // the id is in use
  for (uint64_t id = 2; id <= 256; ++id)
    submit(generate_request(id, 9, {{1}}, 1));
  EXPECT_EQ(code_of([&] { submit(generate_request(257, 9, {{1}}, 1)); }),
            ErrorCode::kResourceExhausted);
}

// Episodes bring their prompts, one each; an engine alone has nobody who would.
TEST_F(GeneratorTest, EpisodesNeedAnEnvironment) {
  auto student = make_client(old_weights, client);
  GenerateRequest episodes = generate_request(1, 0, {{}, {}});
  episodes.episodes = {{.seed = 1, .row = "{}"}, {.seed = 2, .row = "{}"}};
  PendingSamples pending = queued(*student, episodes);
  draw_all();
  const Error error = test::error_of([&] { received(*student, std::move(pending)); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(error.message().find("environment.role"), std::string::npos) << error.what();

  const auto refused = [&](const std::function<void(GenerateRequest&)>& spoil) {
    GenerateRequest request = episodes;
    spoil(request);
    auto reply = client.call("generator/0", kGenerateSubmit, request);
    handle(1);
    return code_of([&] { reply.get(Deadline::after(30s)); });
  };
  EXPECT_EQ(refused([](auto& r) { r.episodes.pop_back(); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused([](auto& r) { r.continues = 1; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused([](auto& r) {
              r.prompt_ids = at::tensor({1, 2}, at::kInt);
              r.cu_seqlens = at::tensor({0, 1, 2}, at::kInt);
            }),
            ErrorCode::kInvalidArgument);
}

// What only the engine can see comes back with the samples, and harms nobody else.
TEST_F(GeneratorTest, ARequestThatTheEngineRefusesFailsAlone) {
  auto student = make_client(old_weights, client);
  const GenerateRequest good = generate_request(9, 0, prompts);
  std::vector<PendingSamples> bad;
  // outside the vocabulary
  bad.push_back(queued(*student, generate_request(1, 0, {{1, 64}})));
  // longer than the model allows
  bad.push_back(queued(*student, generate_request(2, 0, {std::vector<int32_t>(120, 1)})));
  bad.push_back(queued(*student, generate_request(3, 0, {{1}, {}})));  // empty
  PendingSamples for_good = queued(*student, good);
  draw_all();
  for (auto& pending : bad)
    EXPECT_EQ(code_of([&] { received(*student, std::move(pending)); }),
              ErrorCode::kInvalidArgument);
  expect_drawn_by(old_weights, received(*student, std::move(for_good)), good, prompts);
  // Who has all of them has said so.
  const auto again = [&] {
    client.call("generator/0", kGenerateCollect, CollectRequest{9}).get(Deadline::after(30s));
  };
  EXPECT_EQ(code_of([&] { beside(again); }), ErrorCode::kInvalidArgument);
}

TEST_F(GeneratorTest, ScoresAsATeacherDoes) {
  const models::PackedTokens tokens = models::pack_rows({{1, 2, 3, 4, 50}, {5, 6}, {7, 8, 9}});
  const ForwardRequest request{.request_id = 1,
                               .step = 1,
                               .input_ids = tokens.input_ids.to(at::kInt),
                               .cu_seqlens = at::tensor(tokens.cu_seqlens, at::kLong).to(at::kInt),
                               .positions = at::tensor({1, 2, 3, 5, 7, 8}, at::kInt),
                               .spec = {.kind = PayloadKind::kTargetLogProbs}};
  const auto score = [&](const ForwardRequest& r) {
    auto reply = client.call("generator/0", kGeneratorScore, r);
    handle(1);
    return reply.get(Deadline::after(30s));
  };
  Teacher teacher("teacher/0", golden_decoder(), models::Tokenizer::load(golden_model()));
  const Payload got = score(request), expected = ask_teacher(teacher, request);
  EXPECT_TRUE(at::allclose(got.logps, expected.logps, 0, 1e-5));
  EXPECT_EQ(got.label.sequence_hash, expected.label.sequence_hash);
  EXPECT_EQ(got.label.weight_version, 0u);
  ForwardRequest last = request, other = request;
  last.positions = at::tensor({4}, at::kInt);  // no token follows it
  EXPECT_EQ(code_of([&] { score(last); }), ErrorCode::kInvalidArgument);
  last.positions = at::tensor({10}, at::kInt);  // outside
  EXPECT_EQ(code_of([&] { score(last); }), ErrorCode::kInvalidArgument);
  last.positions = at::Tensor();
  EXPECT_EQ(code_of([&] { score(last); }), ErrorCode::kInvalidArgument);
  other.spec.kind = PayloadKind::kFull;
  EXPECT_EQ(code_of([&] { score(other); }), ErrorCode::kInvalidArgument);
}

TEST_F(GeneratorTest, HandshakeNamesWhatDiffers) {
  models::ModelConfig config = golden_decoder().config();
  config.intermediate_size *= 2;
  const auto wider = models::Decoder::random(config, 1, at::kFloat);
  const Error error = test::error_of([&] { make_client(wider, client); });
  EXPECT_EQ(error.code(), ErrorCode::kMismatch);
  const std::string message = error.what();
  EXPECT_NE(message.find("shapes"), std::string::npos) << message;
  EXPECT_NE(message.find("generator/0"), std::string::npos) << message;
  const auto half = models::load_decoder(golden_model(), at::kBFloat16);
  EXPECT_EQ(code_of([&] { make_client(half, client); }), ErrorCode::kMismatch);
}

class TightGeneratorTest : public GeneratorFixture {
 protected:
  // Room for one request of 84 tokens, and no more.
  TightGeneratorTest() : GeneratorFixture({.num_blocks = 6}) {}
};

TEST_F(TightGeneratorTest, GivesUpTheRequestsOfALostCaller) {
  const models::Decoder weights = golden_decoder();
  const Prompts prompt{{1, 2, 3, 4}};
  GenerateRequest request = generate_request(1, 0, prompt, 1, 80);
  request.draw.eos_token_ids.clear();
  auto lost_agent =
      std::make_unique<rpc::Agent>(rpc::Agent::Options{.name = "student/1", .secret = "s"});
  lost_agent->connect("generator/0", server.address(), Deadline::after(30s));
  auto student = make_client(weights, client);
  {
    auto lost = make_client(weights, *lost_agent);
    PendingSamples active = queued(*lost, request);
    GenerateRequest second = request;
    second.request_id = 2;
    PendingSamples waiting = queued(*lost, second);
    for (int i = 0; i < 70; ++i)
      ASSERT_TRUE(generator.work());  // the first has five of the six blocks
    ASSERT_FALSE(active.reply.ready());
    lost_agent->close();
    lost_agent->join();
    EXPECT_EQ(code_of([&] { active.reply.get(); }), ErrorCode::kClosed);
  }
  // The loss is noticed on the agent's own thread; a request that is not given up ends and is
  // counted.
  ASSERT_TRUE(test::wait_until(
      [&] {
        const auto peers = server.peers();
        return std::find(peers.begin(), peers.end(), "student/1") == peers.end();
      },
      30s, 1ms));
  EXPECT_FALSE(generator.work()) << "requests of a caller that is lost are still in work";
  EXPECT_EQ(generator.requests_served(), 0);
  const Samples samples = beside([&] { return student->receive(student->send(request)); });
  expect_drawn_by(weights, samples, request, prompt);
}

}  // namespace
}  // namespace retort::roles

// A rank of a generator's replica that ends by itself takes the replica with it: no rank goes on
// alone, and callers hear at once that it is lost.
#include <cstdlib>
#include <thread>

#include "tests/parallel/rank_process.h"
#include "tests/roles/generator_fixture.h"
#include "tests/roles/nano_model.h"

namespace retort::roles {
namespace {

using parallel::World;
using parallel::testing::error_of;
using parallel::testing::require;

constexpr int64_t kTokens = 2000;  // drawn for much longer than the message travels
constexpr rpc::Method<Empty, Empty> kLeave{"test.leave"};

models::Decoder nano_decoder(World& world) {
  models::ModelConfig config = nano_model(models::Family::kQwen3, false, 1);
  config.max_position_embeddings = 2 * kTokens;
  return models::Decoder::random(config, 1, at::kFloat, models::Placement::of(world));
}

// On the first rank: a request is drawn when the other one is told to end.
void lose_the_other(Generator& generator, rpc::HandlerQueue& queue,
                    const std::vector<std::string>& addresses) {
  rpc::Agent student({.name = "student/0", .secret = "s"});
  for (size_t rank = 0; rank < addresses.size(); ++rank)
    student.connect("generator/" + std::to_string(rank), addresses[rank], Deadline::after(30s));
  GenerateRequest request = generate_request(1, 0, {{1, 2, 3}}, 1, kTokens);
  request.draw.eos_token_ids.clear();
  auto accepted = student.call("generator/0", kGenerateSubmit, request);
  auto samples = student.call("generator/0", kGenerateCollect, CollectRequest{1});
  for (int calls = 0; calls < 2; ++calls) {
    auto job = queue.pop(Deadline::after(30s));
    require(job.has_value(), "a call arrives");
    (*job)();
  }
  accepted.get(Deadline::after(30s));
  require(generator.work(), "the request is begun");

  auto left = student.call("generator/1", kLeave, {});
  const auto slowly = [] {
    std::this_thread::sleep_for(2ms);
    return false;
  };
  const Error ended = error_of([&] { generator.lead(queue, slowly); });
  require(ended.code() == ErrorCode::kCollective || ended.code() == ErrorCode::kTimeout,
          ended.what());
  const Error lost = error_of([&] { samples.get(Deadline::after(30s)); });
  require(lost.code() == ErrorCode::kPeerLost, lost.what());
  require(generator.requests_served() == 0, "nothing was drawn to its end");
  require(error_of([&] { left.get(Deadline::after(30s)); }).code() == ErrorCode::kPeerLost,
          "the other rank is gone");
}

}  // namespace

void lost_rank_scenario() {
  World world(parallel::testing::child_world_options());
  const std::string name = "generator/" + std::to_string(world.rank());
  Generator generator(name, nano_decoder(world), models::Tokenizer::load(golden_model()),
                      {.num_blocks = 2 * kTokens / 16});
  auto queue = std::make_shared<rpc::HandlerQueue>(1024);
  rpc::Agent agent({.name = name, .secret = "s"});
  generator.serve(agent, queue);
  agent.serve(kLeave, queue, [](Empty, const rpc::CallContext&) {
    std::_Exit(0);
    return Empty{};
  });
  std::vector<std::string> addresses;
  for (int rank = 0; rank < world.size(); ++rank)
    addresses.push_back(world.all().broadcast(agent.address(), rank));
  if (generator.leads()) {
    lose_the_other(generator, *queue, addresses);
  } else {
    generator.follow(*queue);
    require(false, "this rank ends in the middle");
  }
  queue->close();
}

TEST(GeneratorRanks, EndTogetherWhenOneEndsByItself) {
  const parallel::StoreServer store("127.0.0.1");
  auto ranks =
      parallel::testing::spawn_ranks(store, {.scenario = "lost_rank", .layout = {.tp = 2}}, 2);
  parallel::testing::expect_success(std::move(ranks), 120s);
}

}  // namespace retort::roles

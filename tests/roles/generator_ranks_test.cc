// A generator's replica of several ranks draws what one rank draws, takes new weights between two
// steps on all ranks at once, and refuses what did not arrive everywhere.
#include <ATen/ops/equal.h>

#include <cmath>

#include "models/generation/score.h"
#include "roles/generator/replica_engine.h"
#include "roles/generator/weight_buckets.h"
#include "roles/generator/weight_checksum.h"
#include "rpc/archive.h"
#include "tests/parallel/rank_process.h"
#include "tests/roles/generator_fixture.h"
#include "tests/roles/nano_model.h"

namespace retort::roles {

void lost_rank_scenario();  // generator_lost_rank_test.cc
void episodes_scenario();   // episode_ranks_test.cc

namespace {

using parallel::Layout;
using parallel::World;
using parallel::testing::error_of;
using parallel::testing::require;

models::ModelConfig nano(models::Family family) {
  models::ModelConfig config = nano_model(family, family == models::Family::kQwen2, 3);
  config.max_position_embeddings = 256;
  config.initializer_range = 0.3;
  config.sliding_window = {0, 6, 0};
  if (family == models::Family::kGemma2) config.final_logit_softcapping = 5.0;
  return config;
}

// Random weights, with norms and biases that differ from one another: those of Decoder::random are
// ones and zeros.
models::Decoder nano_decoder(models::Family family, uint64_t seed,
                             const models::Placement& placement = {}) {
  auto decoder = models::Decoder::random(nano(family), seed, at::kFloat, placement);
  for (parallel::NamedParameter& parameter : decoder.parameters()) {
    if (parameter.value.dim() != 1) continue;
    const double middle = parameter.name.ends_with(".bias") ? 0 : 1;
    for (int64_t i = 0; i < parameter.value.numel(); ++i)
      parameter.value.mutable_data_ptr<float>()[i] = static_cast<float>(
          middle + 0.3 * std::sin(static_cast<double>(parameter.shard.begin + i) +
                                  static_cast<double>(seed)));
  }
  return decoder;
}

// The same tokens, and log-probabilities within 1e-5.
void require_near(const std::vector<models::Completion>& got,
                  const std::vector<models::Completion>& expected, const std::string& what) {
  require(got.size() == expected.size(), what + ": as many completions");
  for (size_t i = 0; i < got.size(); ++i) {
    require(got[i].token_ids == expected[i].token_ids,
            what + ": tokens of completion " + std::to_string(i));
    require(got[i].finish_reason == expected[i].finish_reason, what + ": finish reason");
    for (size_t t = 0; t < got[i].logps.size(); ++t) {
      require(std::abs(got[i].logps[t] - expected[i].logps[t]) <=
                  1e-5F * std::max(1.0F, std::abs(expected[i].logps[t])),
              what + ": log-probability");
      require(std::abs(got[i].sampling_logps[t] - expected[i].sampling_logps[t]) <=
                  2e-5F * std::max(1.0F, std::abs(expected[i].sampling_logps[t])),
              what + ": sampling log-probability");
    }
  }
}

void require_same_bits(const std::vector<models::Completion>& got,
                       const std::vector<models::Completion>& expected, const std::string& what) {
  require(got.size() == expected.size(), what + ": as many completions");
  for (size_t i = 0; i < got.size(); ++i)
    require(got[i].token_ids == expected[i].token_ids && got[i].logps == expected[i].logps &&
                got[i].sampling_logps == expected[i].sampling_logps,
            what + ": bits of completion " + std::to_string(i));
}

Prompts some_prompts() {
  Prompts prompts{{}, {5, 6, 7}, {}};
  for (int32_t i = 0; i < 40; ++i)
    prompts[0].push_back(i * 7 % 67);
  prompts[2] = prompts[0];  // shares its full blocks
  prompts[2].resize(37);
  prompts[2].push_back(66);
  return prompts;
}

models::GenerationRequest engine_request(double temperature, double penalty) {
  models::GenerationRequest request{.prompts = some_prompts(), .num_generations = 3};
  request.draw = {.sampling = {.temperature = temperature,
                               .top_p = temperature == 0 ? 1.0 : 0.9,
                               .repetition_penalty = penalty,
                               .seed = 4},
                  .max_new_tokens = 20,
                  .eos_token_ids = {11}};
  return request;
}

void compare_engines(World& world, models::Family family) {
  const auto split = nano_decoder(family, 3, models::Placement::of(world)),
             whole = nano_decoder(family, 3);
  for (const double temperature : {0.0, 0.8}) {
    const models::GenerationRequest request =
        engine_request(temperature, temperature == 0 ? 1.0 : 1.1);
    models::Engine wide(split, {.num_blocks = 100}),
        tight(split, {.num_blocks = 8, .max_tokens_per_step = 16, .max_sequences = 4});
    const auto expected = models::Engine(whole, {.num_blocks = 100}).run(request);
    const auto got = wide.run(request);
    require_near(got, expected, "tp against one rank");
    require_same_bits(tight.run(request), got, "little memory and short steps");
    require(tight.stats().preemptions > 0, "sequences were driven out");
    models::GenerationRequest alone = request;
    alone.prompts = {request.prompts[1]};
    alone.sample_ids = {3, 4, 5};
    require_same_bits(wide.run(alone), {got.begin() + 3, got.begin() + 6}, "alone");
    require_same_bits(wide.run(request), got, "with a cached prefix");
    require(wide.stats().reused_tokens > 0, "a prefix was taken over");
    const uint64_t given_up = wide.submit(request);
    for (int i = 0; i < 5; ++i)
      wide.step();
    wide.cancel(given_up);
    wide.take(given_up);
    require_same_bits(wide.run(request), got, "after a cancelled request");
  }
  const models::ScoreRequest score{.sequences = some_prompts(), .prompt_lengths = {1, 2, 30}};
  const auto got = models::score(split, score, {.vocab_chunk = 10, .row_chunk = 7}),
             expected = models::score(whole, score);
  for (size_t s = 0; s < got.size(); ++s)
    for (size_t t = 0; t < got[s].size(); ++t)
      require(
          std::abs(got[s][t] - expected[s][t]) <= 1e-5F * std::max(1.0F, std::abs(expected[s][t])),
          "score");
}

void engines_scenario() {
  for (const int64_t tp : {2, 4}) {
    const World::Options options =
        parallel::testing::child_world_options("tp" + std::to_string(tp), {.tp = tp});
    if (options.rank >= tp) continue;
    World world(options);
    for (const models::Family family :
         {models::Family::kQwen3, models::Family::kLlama, models::Family::kQwen2,
          models::Family::kPhi3, models::Family::kGemma2, models::Family::kGemma3})
      compare_engines(world, family);
  }
}

models::Decoder whole_model(uint64_t seed) { return nano_decoder(models::Family::kQwen3, seed); }

std::vector<models::Completion> completions(const Samples& samples) {
  std::vector<models::Completion> all;
  const int32_t* ends = samples.cu_seqlens.const_data_ptr<int32_t>();
  for (int64_t i = 0; i < samples.finish_reasons.numel(); ++i) {
    models::Completion one;
    const auto copy = [&](const auto* from, auto& to) {
      to.assign(from + ends[i], from + ends[i + 1]);
    };
    copy(samples.token_ids.const_data_ptr<int32_t>(), one.token_ids);
    copy(samples.logps.const_data_ptr<float>(), one.logps);
    copy(samples.sampling_logps.const_data_ptr<float>(), one.sampling_logps);
    one.finish_reason =
        static_cast<models::FinishReason>(samples.finish_reasons.const_data_ptr<uint8_t>()[i]);
    all.push_back(std::move(one));
  }
  return all;
}

// What a client sees of the replica whose ranks are `peers`.
class Client {
 public:
  Client(rpc::Agent& agent, const std::vector<std::string>& peers)
      : agent_(agent),
        peers_(peers),
        client_(agent,
                {.role = "generator",
                 .peers = peers,
                 .tp = static_cast<int64_t>(peers.size()),
                 .timeout = 30s,
                 .generation_timeout = 60s},
                models::Tokenizer::load(golden_model()), old_) {}

  void run() {
    const GenerateRequest first = generate_request(1, 0, prompts_, 2, 60);
    require_near(completions(client_.receive(client_.send(first))),
                 drawn_alone(old_, first, prompts_), "version 0");
    weights_change_between_requests();
    give_up();
    refuse_damage();
    require_near(completions(client_.receive(client_.send(request_for(20, 3)))),
                 drawn_alone(new_, request_for(20, 3), prompts_), "at the end");
  }

 private:
  GenerateRequest request_for(uint64_t id, uint64_t version) const {
    return generate_request(id, version, prompts_, 2, 60);
  }

  // New weights arrive while samples are drawn: each request has one version on all ranks.
  void weights_change_between_requests() {
    const GenerateRequest before = request_for(2, 0), after = request_for(3, 2);
    PendingSamples drawn_before = client_.send(before);
    client_.wait_accepted(drawn_before);
    PendingPush push = client_.push(new_, 2, 500, false);
    PendingSamples drawn_after = client_.send(after);
    require_near(completions(client_.receive(std::move(drawn_before))),
                 drawn_alone(old_, before, prompts_), "before the push");
    client_.wait_pushed(std::move(push));
    require_near(completions(client_.receive(std::move(drawn_after))),
                 drawn_alone(new_, after, prompts_), "after the push");
  }

  void give_up() {
    PendingSamples pushed_out = client_.send(request_for(4, 2)),
                   left = client_.send(request_for(5, 2));
    client_.wait_accepted(pushed_out);
    client_.wait_accepted(left);
    left.reply.cancel();
    PendingPush push = client_.push(new_, 3, 1 << 20, true);
    try {  // it may have been done before
      client_.receive(std::move(pushed_out));
    } catch (const Error& error) {
      require(error.code() == ErrorCode::kCancelled, error.what());
    }
    client_.wait_pushed(std::move(push));
    require_near(completions(client_.receive(client_.send(request_for(6, 3)))),
                 drawn_alone(new_, request_for(6, 3), prompts_),
                 "after a push that gave samples up");
  }

  // What is wrong on one rank only keeps the old weights on all.
  void refuse_damage() {
    std::vector<WeightReceipt> receipts;
    for (size_t rank = 0; rank < peers_.size(); ++rank) {
      const GeneratorInfo info = agent_.call(peers_[rank], kGeneratorInfo, {}).get();
      std::vector<WeightBucket> buckets = make_weight_buckets(old_, info.slices, 9, 2000);
      if (rank + 1 == peers_.size()) buckets.back().parts.pop_back();  // the last rank lacks a part
      receipts.push_back({.receiver = static_cast<int64_t>(rank),
                          .buckets = static_cast<int64_t>(buckets.size())});
      for (WeightBucket& bucket : buckets) {
        receipts.back().checksum = seal(bucket, receipts.back().checksum);
        agent_.call(peers_[rank], kWeightsBucket, bucket).get();
      }
      WeightBucket damaged = buckets.front();
      damaged.index = 1000;
      damaged.parts[0].values = damaged.parts[0].values.clone();
      static_cast<char*>(damaged.parts[0].values.mutable_data_ptr())[0] ^= 1;
      require(error_of([&] { agent_.call(peers_[rank], kWeightsBucket, damaged).get(); }).code() ==
                  ErrorCode::kCorrupt,
              "a damaged bucket is refused");
    }
    const Error error = error_of([&] {
      agent_.call(peers_[0], kWeightsCommit, {.version = 9, .receipts = receipts})
          .get(Deadline::after(30s));
    });
    require(error.code() == ErrorCode::kCorrupt &&
                std::string(error.what()).find("missing") != std::string::npos,
            error.what());
  }

  rpc::Agent& agent_;
  std::vector<std::string> peers_;
  const models::Decoder old_ = whole_model(1), new_ = whole_model(2);
  const Prompts prompts_{{1, 2, 3}, {9, 8, 7, 6, 5}, {40}};
  GeneratorClient client_;
};

void generator_scenario() {
  World world(parallel::testing::child_world_options());
  const std::string name = "generator/" + std::to_string(world.rank());
  auto decoder = nano_decoder(models::Family::kQwen3, 1, models::Placement::of(world));
  Generator generator(name, std::move(decoder), models::Tokenizer::load(golden_model()),
                      engine_options());
  auto queue = std::make_shared<rpc::HandlerQueue>(1024);
  rpc::Agent agent({.name = name, .secret = "s"});
  generator.serve(agent, queue);
  std::vector<std::string> addresses, peers;
  for (int rank = 0; rank < world.size(); ++rank) {
    addresses.push_back(world.all().broadcast(agent.address(), rank));
    peers.push_back("generator/" + std::to_string(rank));
  }
  if (!generator.leads()) {
    generator.follow(*queue);
  } else {
    auto client = std::async(std::launch::async, [&] {
      rpc::Agent student({.name = "student/0", .secret = "s"});
      for (size_t i = 0; i < peers.size(); ++i)
        student.connect(peers[i], addresses[i], Deadline::after(30s));
      Client(student, peers).run();
    });
    generator.lead(*queue, [&] { return client.wait_for(0s) == std::future_status::ready; });
    client.get();
    require(generator.weight_version() == 3, "the version in use");
  }
  queue->close();
}

// A commit that is given up is given up on every rank: all of them take buckets again.
void discard_scenario() {
  World world(parallel::testing::child_world_options("discard", {.tp = 2}));
  auto decoder = nano_decoder(models::Family::kQwen3, 1, models::Placement::of(world));
  const std::vector<WeightSlice> held = weight_slices(decoder);
  ReplicaEngine replica(std::move(decoder), models::Tokenizer::load(golden_model()),
                        engine_options());

  // What one sender has for this rank, and its receipts for all.
  const models::Decoder weights = whole_model(2);
  std::vector<WeightBucket> buckets = make_weight_buckets(weights, held, 1, 2000);
  WeightReceipt receipt{.receiver = world.rank(), .buckets = static_cast<int64_t>(buckets.size())};
  for (WeightBucket& bucket : buckets)
    receipt.checksum = seal(bucket, receipt.checksum);
  CommitWeights commit{.version = 1, .receipts = {}};
  for (int rank = 0; rank < world.size(); ++rank)
    commit.receipts.push_back(
        rpc::from_bytes<WeightReceipt>(world.all().broadcast(rpc::to_bytes(receipt), rank)));

  const auto stage = [&] {
    for (const WeightBucket& bucket : buckets)
      replica.stage(bucket, "student/0");
  };
  const auto follow = [&](int calls) {
    for (; calls > 0; --calls)
      require(replica.follow(), "the first rank goes on");
  };

  stage();
  if (replica.leads()) {
    replica.check(commit);
    replica.uncheck();
    stage();
    replica.check(commit);
    replica.apply();
    replica.stop();
  } else {
    follow(2);
    stage();
    follow(2);
    require(!replica.follow(), "the first rank stops");
  }
  require(replica.weight_version() == 1, "the weights that were committed again are in use");
}

// Ranks do all that their number is good for, in a world after the other.
void two_ranks_scenario() {
  discard_scenario();
  episodes_scenario();
  generator_scenario();
}

void four_ranks_scenario() {
  engines_scenario();
  generator_scenario();
}

void run_ranks(const std::string& scenario, int64_t ranks) {
  const parallel::StoreServer store("127.0.0.1");
  auto children =
      parallel::testing::spawn_ranks(store, {.scenario = scenario, .layout = {.tp = ranks}}, ranks);
  parallel::testing::expect_success(std::move(children), 180s);
}

}  // namespace

TEST(GeneratorRanks, OfTwoGiveUpACommitAnswerEpisodesAndServe) { run_ranks("two_ranks", 2); }
TEST(GeneratorRanks, OfFourDrawWhatOneRankDrawsAndServe) { run_ranks("four_ranks", 4); }

}  // namespace retort::roles

int main(int argc, char** argv) {
  return retort::parallel::testing::ranks_or_tests(
      argc, argv,
      {{"two_ranks", retort::roles::two_ranks_scenario},
       {"four_ranks", retort::roles::four_ranks_scenario},
       {"lost_rank", retort::roles::lost_rank_scenario}});
}

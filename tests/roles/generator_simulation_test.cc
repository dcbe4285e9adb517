// Generators and their callers over a simulated network (tests/rpc/simulation): the production
// generator, the trainer's client, pushed weights and reconnecting links, on one thread and a clock
// of its own. Everything follows from a seed.
//
// True in every run, whatever is lost:
// - a trainer gets all samples that it asks for, drawn with the weights that the request names: the
//   same tokens as in every other run;
// - pushed weights are in use on every generator in the end;
// - a caller that is replaced by a new process may use its request ids again: nothing is left of
//   what the one before did not collect.
//
// RETORT_SEEDS: how many; RETORT_SEED: this one alone, as the message of a failure says.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/roles/generator_fixture.h"
#include "tests/rpc/simulation/world.h"

namespace retort::roles {
namespace {

using rpc::simulation::ConnectionKind;
using rpc::simulation::Host;
using rpc::simulation::World;

constexpr int64_t kBucketBytes = 16'384;
constexpr std::chrono::milliseconds kPatience{60s}, kRun{20min};

const models::Tokenizer& tokenizer() {
  static const models::Tokenizer loaded = models::Tokenizer::load(golden_model());
  return loaded;
}
models::Decoder decoder_of(uint64_t version) {
  static const models::ModelConfig config = golden_decoder().config();
  return models::Decoder::random(config, 1 + version, at::kFloat);
}
const models::Decoder& weights_of(uint64_t version) {
  static std::map<uint64_t, models::Decoder> decoders;
  const auto found = decoders.find(version);
  if (found != decoders.end()) return found->second;
  return decoders.emplace(version, decoder_of(version)).first->second;
}

rpc::Agent::Options agent_options(const std::shared_ptr<Host>& host, uint64_t restart) {
  rpc::RpcOptions rpc;
  rpc.heartbeat_interval = 500ms;
  rpc.peer_timeout = 1500ms;
  return {.name = host->name(),
          .secret = "the secret of a simulation",
          .rpc = rpc,
          .restart = restart,
          .network = host};
}

class GeneratorProcess {
 public:
  GeneratorProcess(World& world, const std::string& name, uint64_t restart)
      : restart(restart),
        host(world.network.add_host(name)),
        world_(world),
        generator_(name, decoder_of(0), tokenizer(), engine_options()),
        agent_(agent_options(host, restart)) {
    generator_.serve(agent_, queue_);
    world.directory[name] = host->address();
    world.scheduler.spawn(
        [this] {
          // A forward pass takes its time.
          generator_.lead(*queue_, [this] {
            world_.scheduler.sleep(1ms + world_.scheduler.up_to(3));
            return stopping_;
          });
          done_ = true;
        },
        host.get());
  }
  void stop() {
    agent_.join();
    stopping_ = true;
    queue_->close();
    while (!done_)
      world_.scheduler.sleep(1ms);
  }

  const uint64_t restart;
  const std::shared_ptr<Host> host;

 private:
  World& world_;
  std::shared_ptr<rpc::HandlerQueue> queue_ = std::make_shared<rpc::HandlerQueue>(4096);
  Generator generator_;
  rpc::Agent agent_;
  bool stopping_ = false, done_ = false;
};

// A process that asks generators.
class Caller {
 public:
  Caller(World& world, const std::string& name, uint64_t restart)
      : restart(restart),
        host(world.network.add_host(name)),
        agent(agent_options(host, restart)),
        links(agent, {.find =
                          [this, &world](const std::string& peer, Deadline deadline) {
                            while (!deadline.expired()) {
                              world.scheduler.sleep(1ms + world.scheduler.up_to(40));
                              const auto found = world.directory.find(peer);
                              if (found != world.directory.end()) return found->second;
                            }
                            throw Error(ErrorCode::kUnavailable, "nobody knows " + peer);
                          },
                      .attempt = 5s,
                      .first_pause = 0ms,
                      .longest_pause = 0ms}) {}

  const uint64_t restart;
  const std::shared_ptr<Host> host;
  rpc::Agent agent;
  rpc::PeerLinks links;
};

class GeneratorSimulation {
 public:
  explicit GeneratorSimulation(uint64_t seed)
      : world_(seed, {.latency_ms = static_cast<int64_t>(seed % 5), .data_silence = 1500ms}) {}

  std::string run() {
    world_.scheduler.spawn([this] { conduct(); }, nullptr);
    const bool ended =
        world_.scheduler.run([&] { return ended_ || !world_.failure().empty(); }, kRun);
    if (!ended) world_.fail("something waits for ever");
    return world_.failure();
  }

 private:
  void conduct();
  void train();
  void submit_and_go_away();
  void submit(Caller& caller, uint64_t life);
  void injure();
  void check(const Samples& samples);
  uint64_t pick(uint64_t below) { return world_.scheduler.pick(below); }
  void fail(const std::string& who, const Error& error) { world_.fail(who + ": " + error.what()); }

  World world_;
  std::vector<std::string> names_;
  std::map<std::string, std::shared_ptr<GeneratorProcess>> generators_;
  std::vector<std::shared_ptr<GeneratorProcess>> former_;
  int at_work_ = 0;
  bool ended_ = false;
};

// What was drawn with these weights for this request, in whichever run came first.
void GeneratorSimulation::check(const Samples& samples) {
  static std::map<std::pair<uint64_t, uint64_t>, std::vector<int32_t>> known;
  const int32_t* tokens = samples.token_ids.const_data_ptr<int32_t>();
  const std::vector<int32_t> drawn(tokens, tokens + samples.token_ids.numel());
  const auto [place, first] =
      known.emplace(std::pair(samples.weight_version, samples.request_id), drawn);
  if (!first && place->second != drawn)
    world_.fail("request " + std::to_string(samples.request_id) + " got other tokens than before");
}

void GeneratorSimulation::train() {
  Caller trainer(world_, "student/0", 0);
  try {
    for (const auto& name : names_)
      trainer.links.keep(name, Deadline::after(kPatience));
    GeneratorClient client(trainer.agent,
                           {.role = "generator",
                            .peers = names_,
                            .timeout = 60s,
                            .generation_timeout = 60s,
                            .links = &trainer.links,
                            .patience = kPatience},
                           tokenizer(), weights_of(0));
    uint64_t version = 0;
    for (; version < 1 + pick(3); ++version) {
      if (version > 0)
        client.wait_pushed(client.push(weights_of(version), version, kBucketBytes, false));
      std::vector<PendingSamples> pending;
      for (uint64_t i = 0; i < 1 + names_.size(); ++i)
        pending.push_back(
            client.send(generate_request(10 * version + i, version, {{1, 2, 3}, {40}}, 1, 6)));
      for (auto& samples : pending)
        check(client.receive(std::move(samples)));
    }

    // In the end all of them use what was pushed last.
    for (const auto& name : names_)
      for (uint64_t used = 0; used + 1 != version && world_.failure().empty();
           world_.scheduler.sleep(50ms))
        used = rpc::ask_until_up(&trainer.links, {name}, Deadline::after(kPatience), [&] {
          return trainer.agent.call(name, kGeneratorInfo, {}, {.timeout = 5s}).get().weight_version;
        });
  } catch (const Error& error) {
    fail("the trainer", error);
  }
}

// Again and again as a new process: what it does not collect is different each time.
void GeneratorSimulation::submit_and_go_away() {
  for (uint64_t life = 0; life < 3 && world_.failure().empty(); ++life) {
    Caller caller(world_, "student/1", life);
    try {
      submit(caller, life);
    } catch (const Error& error) {
      fail("a caller", error);
    }
    // Killed, most of the time; how its agent ends after that is nobody's business.
    if (pick(3) > 0) world_.network.kill(*caller.host, pick(2) == 0);
  }
}

void GeneratorSimulation::submit(Caller& caller, uint64_t life) {
  const std::string& name = names_.front();
  caller.links.keep(name, Deadline::after(kPatience));
  const Prompts prompts{std::vector<int32_t>(1 + life, 7)};
  for (uint64_t id = 1; id <= 3; ++id) {
    rpc::ask_until_up(&caller.links, {name}, Deadline::after(kPatience), [&] {
      // Some are for weights that come later, or never.
      const uint64_t version = id == 2 ? 100 : 0;
      try {
        caller.agent
            .call(name, kGenerateSubmit, generate_request(id, version, prompts, 1, 5 + 10 * id),
                  {.timeout = 60s})
            .get();
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kMismatch) throw;
      }
      return 0;
    });
    world_.scheduler.sleep(world_.scheduler.up_to(20));
  }
}

void GeneratorSimulation::injure() {
  for (uint64_t faults = pick(4); faults > 0; --faults) {
    world_.scheduler.sleep(world_.scheduler.up_to(1500));
    const std::string name = names_[pick(names_.size())];
    const auto old = generators_.at(name);
    const uint64_t what = pick(5);
    if (what < 2) {
      const auto kind = what == 0 ? ConnectionKind::kControl : ConnectionKind::kData;
      const auto connection = world_.network.pick_connection(kind);
      if (connection) world_.network.mute(*connection, pick(2) == 0);
    } else if (what == 2) {
      old->host->frozen = true;
      world_.scheduler.after(world_.scheduler.up_to(3000),
                             [this, old] { world_.network.thaw(*old->host); });
    } else {
      world_.network.kill(*old->host, what == 3);
      former_.push_back(old);
      world_.directory.erase(name);
      world_.scheduler.sleep(world_.scheduler.up_to(1000));
      generators_[name] = std::make_shared<GeneratorProcess>(world_, name, old->restart + 1);
    }
  }
}

void GeneratorSimulation::conduct() {
  for (uint64_t i = 0; i < 1 + pick(2); ++i)
    names_.push_back("generator/" + std::to_string(i));
  for (const auto& name : names_)
    generators_[name] = std::make_shared<GeneratorProcess>(world_, name, 0);
  at_work_ = 3;
  for (const auto task : {&GeneratorSimulation::train, &GeneratorSimulation::submit_and_go_away,
                          &GeneratorSimulation::injure})
    world_.scheduler.spawn(
        [this, task] {
          (this->*task)();
          --at_work_;
        },
        nullptr);
  while (at_work_ > 0)
    world_.scheduler.sleep(20ms);

  for (const auto& [name, process] : generators_)
    former_.push_back(process);
  generators_.clear();
  for (const auto& process : former_)
    process->stop();
  former_.clear();
  ended_ = true;
}

uint64_t number(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::stoull(text) : otherwise;
}

TEST(GeneratorSimulation, EverySeedIsClean) {
  (void)weights_of(0);  // outside of a simulation, like everything that is read from files
  (void)tokenizer();
  const uint64_t only = number("RETORT_SEED", 0);
  const uint64_t seeds = only > 0 ? 1 : number("RETORT_SEEDS", 30);
  for (uint64_t seed = std::max<uint64_t>(only, 1);
       seeds > 0 && seed < std::max<uint64_t>(only, 1) + seeds; ++seed) {
    auto simulation = std::make_unique<GeneratorSimulation>(seed);
    const std::string failure = simulation->run();
    // One that failed has threads in the middle of things: it is left as it is.
    if (!failure.empty()) (void)simulation.release();
    ASSERT_EQ(failure, "") << "RETORT_SEED=" << seed;
  }
}

}  // namespace
}  // namespace retort::roles

int main(int argc, char** argv) {
  setenv("RETORT_LOG", "error", 0);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

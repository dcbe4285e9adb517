#include "tests/roles/simulation/generator_process.h"

#include <map>
#include <utility>

#include "base/error.h"
#include "roles/serving_loop.h"
#include "tests/roles/generator_fixture.h"

namespace retort::roles::simulation {
namespace {

constexpr uint64_t kVersions = 5;

models::Decoder decoder_of(uint64_t version) {
  static const models::ModelConfig config = golden_decoder().config();
  return models::Decoder::random(config, 1 + version, at::kFloat);
}

// The look-up takes its time.
std::string find(World& world, const std::string& peer, Deadline deadline) {
  while (!deadline.expired()) {
    world.scheduler.sleep(1ms + world.scheduler.up_to(40));
    const auto found = world.directory.find(peer);
    if (found != world.directory.end()) return found->second;
  }
  throw Error(ErrorCode::kUnavailable, "nobody knows " + peer);
}

}  // namespace

const models::Decoder& weights_of(uint64_t version) {
  static std::map<uint64_t, models::Decoder> decoders;
  const auto found = decoders.find(version);
  if (found != decoders.end()) return found->second;
  return decoders.emplace(version, decoder_of(version)).first->second;
}

const models::Tokenizer& tokenizer() {
  static const models::Tokenizer loaded = models::Tokenizer::load(golden_model());
  return loaded;
}

void load_files() {
  (void)tokenizer();
  for (uint64_t version = 0; version < kVersions; ++version)
    (void)weights_of(version);
}

rpc::Agent::Options agent_options(const std::shared_ptr<Host>& host, uint64_t restart) {
  rpc::RpcOptions rpc;
  rpc.heartbeat_interval = kPeerTimeout / 3;
  rpc.peer_timeout = kPeerTimeout;
  return {.name = host->name(),
          .secret = "the secret of a simulation",
          .rpc = rpc,
          .restart = restart,
          .network = host};
}

GeneratorProcess::GeneratorProcess(World& world, const std::string& name, uint64_t restart)
    : world_(world), restart_(restart), host_(world.network.add_host(name)) {
  world.scheduler.spawn([this] { live(); }, host_.get());
}

void GeneratorProcess::live() {
  auto engine = std::make_unique<ReplicaEngine>(decoder_of(0), tokenizer(), engine_options());
  engine_ = engine.get();
  Generator generator(host_->name(), std::move(engine));
  generator_ = &generator;

  auto queue = std::make_shared<rpc::HandlerQueue>(kMaxJobs);
  rpc::Agent agent(agent_options(host_, restart_));
  generator.serve(agent, queue);
  // One that is gone does not tell where it is.
  if (!host_->killed()) world_.directory[host_->name()] = host_->address();

  // A forward pass takes its time.
  generator.lead(*queue, [this] {
    world_.scheduler.sleep(1ms + world_.scheduler.up_to(3));
    return stopping_;
  });
  queue->close();
  agent.join();
  engine_ = nullptr;
  generator_ = nullptr;
  ended_ = true;
}

bool GeneratorProcess::holds_anything() const {
  return generator_ != nullptr && (generator_->num_requests() > 0 || engine_->has_staged());
}

void GeneratorProcess::stop() {
  stopping_ = true;
  while (!ended_)
    world_.scheduler.sleep(1ms);
}

Asker::Asker(World& world, const std::shared_ptr<Host>& host, uint64_t restart)
    : agent(agent_options(host, restart)),
      links(agent, {.find = [&world](const std::string& peer,
                                     Deadline deadline) { return find(world, peer, deadline); },
                    .attempt = 5s,
                    // The pause is find()'s, which the seed decides.
                    .first_pause = 0ms,
                    .longest_pause = 0ms}) {}

}  // namespace retort::roles::simulation

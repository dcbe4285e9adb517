// Processes of a simulation that draws samples: a generator, and one that asks generators.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "models/decoder/decoder.h"
#include "roles/generator/replica_engine.h"
#include "roles/generator/server.h"
#include "rpc/agent.h"
#include "rpc/peer_links.h"
#include "tests/rpc/simulation/world.h"

namespace retort::roles::simulation {

using rpc::simulation::Host;
using rpc::simulation::milliseconds;
using rpc::simulation::World;

// The weights of this version: what a trainer has after so many steps. 0: those of the files.
const models::Decoder& weights_of(uint64_t version);
const models::Tokenizer& tokenizer();
// What they read from files, before the first simulation begins.
void load_files();

inline constexpr milliseconds kPeerTimeout{1500};
rpc::Agent::Options agent_options(const std::shared_ptr<Host>& host, uint64_t restart);

// A generator of one rank, as launch/ranks/generator_role.cc runs it. Its threads stand still with
// its host.
class GeneratorProcess {
 public:
  GeneratorProcess(World& world, const std::string& name, uint64_t restart);
  // stop() has returned.
  ~GeneratorProcess() = default;

  const std::shared_ptr<Host>& host() const { return host_; }
  uint64_t restart() const { return restart_; }
  // Requests or staged weights of others.
  bool holds_anything() const;
  // On a simulated thread, which waits until it has ended.
  void stop();

 private:
  void live();

  World& world_;
  const uint64_t restart_;
  const std::shared_ptr<Host> host_;
  const ReplicaEngine* engine_ = nullptr;  // while it serves
  const Generator* generator_ = nullptr;
  bool stopping_ = false, ended_ = false;
};

// The agent of a process that asks generators, and the links that it keeps. Made and destroyed on a
// thread of `host`.
struct Asker {
  Asker(World& world, const std::shared_ptr<Host>& host, uint64_t restart);

  rpc::Agent agent;
  rpc::PeerLinks links;
};

}  // namespace retort::roles::simulation

// One run: a trainer that pushes weights and asks for samples, callers that come and go, generators
// that are lost, and what must be true whatever happens. Everything in it follows from the seed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "roles/generator/client.h"
#include "tests/roles/simulation/generator_process.h"

namespace retort::roles::simulation {

// Production code: the generator with its engine, request table and staged weights; the trainer's
// client, its pushed weights and links; the agents below them. See tests/rpc/simulation for what is
// not: network, threads and time.
//
// True in every run:
// - the trainer gets all samples that it asks for, with the bits that the weights give which the
//   request names; or kCancelled, of a push that aborts or when these weights were lost and
//   replaced;
// - while nothing is lost, a push leaves the trainer for WeightBroadcast::kFanOut replicas alone;
// - in the end every generator uses the weights that were pushed last, whatever late buckets of
//   older ones come;
// - a caller that is replaced by a new process is served as the one before;
// - when the callers are gone, nothing of them is left at any generator.
class GeneratorSimulation {
 public:
  explicit GeneratorSimulation(uint64_t seed);

  // Empty, or what went wrong.
  std::string run();
  uint64_t fingerprint() const { return world_.scheduler.fingerprint(); }

 private:
  using HostPtr = std::shared_ptr<Host>;

  // generator_simulation.cc
  void conduct();
  void begin(const std::string& name, uint64_t restart, void (GeneratorSimulation::*role)(HostPtr));
  void injure();
  void replace(const std::string& name, bool silent);
  void partition();
  void end();
  uint64_t pick(uint64_t below) { return world_.scheduler.pick(below); }
  bool one_of(uint64_t in) { return world_.scheduler.one_of(in); }

  // generator_callers.cc
  void train(HostPtr host);
  std::vector<PendingSamples> ask(GeneratorClient& client, uint64_t version);
  void receive(GeneratorClient& client, std::vector<PendingSamples> pending, bool may_be_cancelled);
  uint64_t bytes_sent(const Asker& trainer) const;
  void check_sent(uint64_t sent, uint64_t bytes_of_weights);
  void check_in_use(Asker& trainer, uint64_t version);
  void submit_and_go_away(HostPtr host);
  void submit(Asker& caller, uint64_t life, uint64_t id);
  void send_late_weights(HostPtr host);

  World world_;
  const bool calm_;
  std::vector<std::string> names_;  // of the generators
  std::map<std::string, std::shared_ptr<GeneratorProcess>> generators_;
  std::vector<std::shared_ptr<GeneratorProcess>> former_;
  std::vector<HostPtr> hosts_;        // of those who ask
  std::map<std::string, int> lives_;  // of a caller, that have begun
  uint64_t pushing_ = 0;              // version of the push that began last
  int at_work_ = 0;
  bool training_ = true, ended_ = false;
};

}  // namespace retort::roles::simulation

// Those who ask the generators of a simulation.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "tests/roles/generator_fixture.h"
#include "tests/roles/sealed_weights.h"
#include "tests/roles/simulation/generator_simulation.h"

namespace retort::roles::simulation {
namespace {

constexpr int64_t kBucketBytes = 16'384;
constexpr milliseconds kPatience{60s}, kPushPatience{300};
constexpr uint64_t kLives = 3;

Prompts prompts_of(uint64_t id) { return {{1, 2, 3}, {static_cast<int32_t>(40 + id % 3)}}; }
GenerateRequest request_of(uint64_t id, uint64_t version) {
  return generate_request(id, version, prompts_of(id), 1 + static_cast<int64_t>(id % 2), 8);
}

// What the engine draws by itself with these weights; the same in all simulations.
const std::vector<models::Completion>& drawn(const GenerateRequest& request) {
  static std::map<std::pair<uint64_t, uint64_t>, std::vector<models::Completion>> known;
  const std::pair key(request.weight_version, request.request_id);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  return known[key] = drawn_alone(weights_of(request.weight_version), request,
                                  prompts_of(request.request_id));
}

bool is_drawn(const Samples& samples, const GenerateRequest& request) {
  const auto& expected = drawn(request);
  const std::vector<IndexedCompletion> arrived = unpack_completions(samples);
  if (arrived.size() != expected.size()) return false;
  for (const auto& [index, completion] : arrived) {
    const models::Completion& same = expected.at(static_cast<size_t>(index));
    if (completion.token_ids != same.token_ids || completion.logps != same.logps) return false;
  }
  return samples.weight_version == request.weight_version;
}

const Sealed& sealed_of(uint64_t version) {
  static std::map<uint64_t, Sealed> known;
  if (const auto found = known.find(version); found != known.end()) return found->second;
  return known[version] = sealed(weights_of(version), version, kBucketBytes);
}

}  // namespace

// Steps of a trainer: samples of each version, and a push in between, which may come while they are
// drawn.
void GeneratorSimulation::train(HostPtr host) {
  Asker trainer(world_, host, 0);
  for (const auto& name : names_)
    trainer.links.keep(name, Deadline::after(kPatience));
  GeneratorClient client(trainer.agent,
                         {.role = "generator",
                          .peers = names_,
                          .timeout = 60s,
                          .generation_timeout = 60s,
                          .links = &trainer.links,
                          .patience = kPatience,
                          .push_patience = kPushPatience},
                         tokenizer(), weights_of(0));

  const uint64_t last = pick(4);
  std::vector<PendingSamples> pending = ask(client, 0);
  for (uint64_t version = 1; version <= last && world_.failure().empty(); ++version) {
    const bool early = one_of(2), abort = one_of(3);
    if (!early) receive(client, std::exchange(pending, {}), !calm_);
    for (PendingSamples& samples : pending)
      client.wait_accepted(samples);
    pushing_ = version;
    const uint64_t before = bytes_sent(trainer);
    PendingPush push = client.push(weights_of(version), version, kBucketBytes, abort);
    if (calm_) check_sent(bytes_sent(trainer) - before, push.bytes);
    std::vector<PendingSamples> next = ask(client, version);
    if (one_of(2)) client.wait_pushed(std::exchange(push, {}));
    receive(client, std::move(pending), abort || !calm_);
    client.wait_pushed(std::move(push));
    pending = std::move(next);
  }
  receive(client, std::move(pending), !calm_);
  check_in_use(trainer, last);
  training_ = false;
}

uint64_t GeneratorSimulation::bytes_sent(const Asker& trainer) const {
  uint64_t bytes = 0;
  for (const std::string& name : names_)
    bytes += trainer.agent.stats(name).bytes_sent;
  return bytes;
}

// The weights leave once for each of the first replicas; words about them are short.
void GeneratorSimulation::check_sent(uint64_t sent, uint64_t bytes_of_weights) {
  const uint64_t times = std::min<uint64_t>(names_.size(), WeightBroadcast::kFanOut);
  // A bucket names its parts, a pass names a bucket.
  const uint64_t buckets = bytes_of_weights / kBucketBytes + 1;
  const uint64_t words = buckets * (times * 2'000 + names_.size() * 500);
  if (sent > times * bytes_of_weights + words)
    world_.fail("a push to " + std::to_string(names_.size()) + " replicas sent " +
                std::to_string(sent) + " bytes for weights of " + std::to_string(bytes_of_weights));
}

std::vector<PendingSamples> GeneratorSimulation::ask(GeneratorClient& client, uint64_t version) {
  std::vector<PendingSamples> pending;
  for (uint64_t i = 0; i < 1 + pick(3); ++i)
    pending.push_back(client.send(request_of(10 * version + i, version)));
  return pending;
}

void GeneratorSimulation::receive(GeneratorClient& client, std::vector<PendingSamples> pending,
                                  bool may_be_cancelled) {
  for (PendingSamples& one : pending) {
    const GenerateRequest request = one.request;
    // Of these weights no generator has any copy when it was lost and newer ones were pushed.
    const bool replaced = request.weight_version < pushing_;
    try {
      if (!is_drawn(client.receive(std::move(one)), request))
        world_.fail("request " + std::to_string(request.request_id) + " got other samples than " +
                    "its weights give");
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kCancelled && may_be_cancelled && replaced) continue;
      throw;
    }
  }
}

void GeneratorSimulation::check_in_use(Asker& trainer, uint64_t version) {
  for (const auto& name : names_) {
    const auto in_use = [&] {
      return rpc::ask_until_up(&trainer.links, {name}, Deadline::after(kPatience), [&] {
        return trainer.agent.call(name, kGeneratorInfo, {}, {.timeout = 60s}).get().weight_version;
      });
    };
    world_.wait_until([&] { return in_use() == version; }, kPatience,
                      name + " does not use the weights that were pushed last");
  }
}

// Again and again as a new process, of which each leaves something else.
void GeneratorSimulation::submit_and_go_away(HostPtr host) {
  const auto life = static_cast<uint64_t>(lives_[host->name()]++);
  {
    Asker caller(world_, host, life);
    caller.links.keep(names_.front(), Deadline::after(kPatience));
    for (uint64_t id = 1; id <= 3; ++id)
      submit(caller, life, id);  // those of the life before, too
    // Killed, most of the time. Its agent ends when it likes: nobody hears of it.
    if (pick(3) > 0) world_.network.kill(*host, one_of(2));
    if (life + 1 < kLives && host->killed())
      begin(host->name(), life + 1, &GeneratorSimulation::submit_and_go_away);
  }
  if (life + 1 < kLives && !host->killed())
    begin(host->name(), life + 1, &GeneratorSimulation::submit_and_go_away);
}

void GeneratorSimulation::submit(Asker& caller, uint64_t life, uint64_t id) {
  const std::string& name = names_.front();
  const Prompts prompts{std::vector<int32_t>(1 + life, 7)};
  // One of them is for weights that never come.
  const auto request = generate_request(id, id % 10 == 2 ? 100 : 0, prompts, 1,
                                        5 + 5 * static_cast<int64_t>(id % 10));
  rpc::ask_until_up(&caller.links, {name}, Deadline::after(kPatience), [&] {
    caller.agent.call(name, kGenerateSubmit, request, {.timeout = 60s}).get();
    return 0;
  });
  if (!one_of(3)) return world_.scheduler.sleep(world_.scheduler.up_to(20));

  // Some are collected for a while.
  auto samples = caller.agent.call(name, kGenerateCollect, {.request_id = id}, {.timeout = 60s});
  samples.wait(Deadline::after(world_.scheduler.up_to(100)));
  samples.cancel();
}

// As a rank of the trainer that stood still for long: buckets of weights that are replaced.
void GeneratorSimulation::send_late_weights(HostPtr host) {
  Asker late(world_, host, 0);
  for (const auto& name : names_)
    late.links.keep(name, Deadline::after(kPatience));
  while (training_ && world_.failure().empty()) {
    world_.scheduler.sleep(1ms + world_.scheduler.up_to(50));
    if (pushing_ < 2) continue;
    const auto& buckets = sealed_of(pushing_ - 1).buckets;
    const std::string& name = names_[pick(names_.size())];
    try {
      late.agent.call(name, kWeightsBucket, buckets[pick(buckets.size())], {.timeout = 60s}).get();
    } catch (const Error& error) {
      const ErrorCode code = error.code();
      const bool refused = code == ErrorCode::kMismatch || code == ErrorCode::kUnavailable;
      if (!refused && code != ErrorCode::kPeerLost) throw;
    }
  }
}

}  // namespace retort::roles::simulation

// Weights from every layout of a trainer to every layout of a generator: each rank gets the slice
// it holds, once, and nothing else.
//
// Four child processes are the ranks of both: process i is rank i of the trainer and rank i of the
// generator's replica, where they have one.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>

#include "models/checkpoint/adapter.h"
#include "roles/generator/weight_buckets.h"
#include "roles/generator/weight_checksum.h"
#include "roles/generator/weight_staging.h"
#include "rpc/archive.h"
#include "tests/parallel/rank_process.h"
#include "tests/roles/nano_model.h"

namespace retort::roles {
namespace {

using parallel::Layout;
using parallel::World;
using parallel::testing::error_of;
using parallel::testing::require;

constexpr int kProcesses = 4;

models::ModelConfig nano(bool tied) { return nano_model(models::Family::kQwen3, tied, 3); }

struct Case {
  Layout trainer;
  int64_t generator_tp;
  bool tied;
  int64_t bucket_bytes;
  bool adapter = false;  // that alone is pushed
};

std::vector<Case> cases() {
  const Layout layouts[] = {{},
                            {.tp = 2},
                            {.tp = 4},
                            {.pp = 2},
                            {.tp = 2, .pp = 2},
                            {.dp = 2},
                            {.tp = 2, .dp = 2},
                            {.pp = 2, .dp = 2, .distributed_optimizer = true}};
  std::vector<Case> all;
  for (const Layout& trainer : layouts)
    for (const int64_t tp : {1, 2, 4}) {
      all.push_back({trainer, tp, tp == 2, 300});
      if (trainer.tp == 2 || trainer.pp == 2) all.push_back({trainer, tp, tp != 2, 1 << 20});
      all.push_back({trainer, tp, tp == 2, 300, /*adapter=*/true});
    }
  return all;
}

std::string name_of(const Case& c) {
  return "tp" + std::to_string(c.trainer.tp) + " pp" + std::to_string(c.trainer.pp) + " dp" +
         std::to_string(c.trainer.dp) + " to tp" + std::to_string(c.generator_tp) +
         (c.tied ? " tied" : "") + (c.adapter ? " adapter" : "");
}

models::LoraConfig all_linear() {
  models::LoraConfig lora{.r = 3, .lora_alpha = 6, .target_modules = {}};
  for (const std::string_view module : models::linear_modules())
    lora.target_modules.emplace_back(module);
  return lora;
}

// What a rank has of the model of that seed, and of its adapter, in which no factor is zero.
models::Decoder decoder_of(const Case& c, uint64_t seed, models::Placement placement) {
  models::Decoder decoder =
      models::Decoder::random(nano(c.tied), seed, at::kFloat, std::move(placement));
  if (!c.adapter) return decoder;
  models::attach_new_adapter(decoder, all_linear(), seed);
  for (const parallel::NamedParameter& factor : decoder.trained_parameters()) {
    if (!factor.name.ends_with("lora_B.weight")) continue;
    const std::vector<int64_t> shape =
        factor.shard.shape.empty() ? factor.value.sizes().vec() : factor.shard.shape;
    const at::Tensor whole =
        at::arange(shape[0] * shape[1], at::kFloat).add(static_cast<double>(seed)).view(shape);
    const int64_t dim = factor.shard.shape.empty() ? 0 : factor.shard.dim;
    at::Tensor(factor.value).copy_(whole.narrow(dim, factor.shard.begin, factor.value.size(dim)));
  }
  return decoder;
}

// What arrives at this process, and what the senders say of it.
struct Arrived {
  std::vector<WeightBucket> buckets;
  CommitWeights commit;
};

// Every process hears what every other sent, and takes what is for it.
Arrived exchange(const Case& c, World& everybody, const std::optional<models::Decoder>& student,
                 int64_t sender, const std::vector<std::vector<WeightSlice>>& held,
                 uint64_t version) {
  std::vector<std::vector<WeightBucket>> sent;  // to each receiver
  if (student && sender >= 0)
    for (const auto& slices : held)
      sent.push_back(make_weight_buckets(*student, slices, version, c.bucket_bytes, sender));
  std::vector<WeightReceipt> receipts;
  for (size_t r = 0; r < sent.size(); ++r) {
    receipts.push_back({.receiver = static_cast<int64_t>(r),
                        .sender = sender,
                        .buckets = static_cast<int64_t>(sent[r].size())});
    for (WeightBucket& bucket : sent[r])
      receipts.back().checksum = seal(bucket, receipts.back().checksum);
  }
  Arrived arrived{.buckets = {}, .commit = {.version = version}};
  for (int from = 0; from < kProcesses; ++from) {
    auto all = rpc::from_bytes<std::vector<std::vector<WeightBucket>>>(
        everybody.all().broadcast(rpc::to_bytes(sent), from));
    const auto said = rpc::from_bytes<std::vector<WeightReceipt>>(
        everybody.all().broadcast(rpc::to_bytes(receipts), from));
    arrived.commit.receipts.insert(arrived.commit.receipts.end(), said.begin(), said.end());
    const auto mine = static_cast<size_t>(everybody.rank());
    if (mine < all.size())
      arrived.buckets.insert(arrived.buckets.end(), all[mine].begin(), all[mine].end());
  }
  return arrived;
}

void check_refused(models::Decoder& generator, const Arrived& arrived,
                   const std::function<void(std::vector<WeightBucket>&)>& spoil,
                   const std::string& message) {
  Arrived spoiled = arrived;
  for (WeightBucket& bucket : spoiled.buckets)
    bucket.version += 1;
  spoiled.commit.version += 1;
  spoil(spoiled.buckets);
  // As a sender would seal and state it, so that only the place of elements is wrong.
  std::map<int64_t, std::pair<int64_t, uint64_t>> stated;
  for (WeightBucket& bucket : spoiled.buckets) {
    auto& [count, checksum] = stated[bucket.sender];
    ++count;
    checksum = seal(bucket, checksum);
  }
  for (WeightReceipt& receipt : spoiled.commit.receipts) {
    if (receipt.receiver != generator.placement().tp_rank()) continue;
    std::tie(receipt.buckets, receipt.checksum) = stated[receipt.sender];
  }
  WeightStaging staging(generator);
  for (const WeightBucket& bucket : spoiled.buckets)
    staging.add(bucket);
  const Error error = error_of([&] { staging.check(spoiled.commit); });
  require(error.code() == ErrorCode::kCorrupt, "kCorrupt");
  require(std::string(error.what()).find(message) != std::string::npos,
          message + " in " + error.what());
}

// The generator's rank of this process: takes what arrived, and then has the slices of the
// trainer's whole.
void check_receiver(const Case& c, models::Decoder& generator, const Arrived& arrived) {
  int64_t sent = 0, own = 0;
  for (const WeightBucket& bucket : arrived.buckets)
    for (const WeightPart& part : bucket.parts)
      sent += part.values.numel();
  for (const auto& parameter : generator.trained_parameters())
    own += parameter.value.numel();
  require(sent == own, "as many elements are sent as this rank holds");
  check_refused(
      generator, arrived,
      [](auto& buckets) {
        for (auto bucket = buckets.rbegin(); bucket != buckets.rend(); ++bucket)
          if (!bucket->parts.empty()) return bucket->parts.pop_back();
      },
      "missing");
  check_refused(
      generator, arrived,
      [](auto& buckets) { buckets.front().parts.push_back(buckets.back().parts.back()); },
      "came twice");
  WeightStaging staging(generator);
  for (const WeightBucket& bucket : arrived.buckets)
    staging.add(bucket);
  const uint64_t checksum = staging.check(arrived.commit);
  std::vector<WeightReceipt> mine = arrived.commit.receipts;
  std::erase_if(
      mine, [&](const WeightReceipt& r) { return r.receiver != generator.placement().tp_rank(); });
  require(weights_checksum(std::vector<uint64_t>{checksum}) == weights_checksum(mine),
          "the senders' checksum");
  staging.apply();
  const models::Decoder expected = decoder_of(c, 1, generator.placement());
  const auto got = generator.trained_parameters(), wanted = expected.trained_parameters();
  for (size_t i = 0; i < got.size(); ++i)
    require(at::equal(got[i].value, wanted[i].value), got[i].name);
}

void compare(const Case& c, const World::Options& given, World& everybody,
             const std::string& prefix) {
  const auto world_of = [&](const Layout& layout, const std::string& role) {
    World::Options options = given;
    options.layout = layout;
    options.store_prefix = prefix + role + "/";
    return options.rank < layout.world_size() ? std::make_unique<World>(options) : nullptr;
  };
  const auto trains = world_of(c.trainer, "student");
  const auto generates = world_of({.tp = c.generator_tp}, "generator");
  std::optional<models::Decoder> student, generator;
  int64_t sender = -1;
  if (trains) {
    student = decoder_of(c, 1, models::Placement::of(*trains));
    if (trains->coordinate().dp == 0) sender = trains->mp().rank();
  }
  if (generates) generator = decoder_of(c, 2, models::Placement::of(*generates));
  // What the ranks of the replica hold.
  std::vector<std::vector<WeightSlice>> held;
  std::set<std::string> hashes;
  for (int rank = 0; rank < kProcesses; ++rank) {
    const auto slices = generator ? weight_slices(*generator) : std::vector<WeightSlice>{};
    const std::string text = everybody.all().broadcast(rpc::to_bytes(slices), rank);
    if (rank < c.generator_tp) held.push_back(rpc::from_bytes<std::vector<WeightSlice>>(text));
    for (const auto* decoder : {student ? &*student : nullptr, generator ? &*generator : nullptr}) {
      const std::string hash = everybody.all().broadcast(
          decoder ? parameters_hash(*decoder, decoder->lora()) : std::string(), rank);
      if (!hash.empty()) hashes.insert(hash);
    }
  }
  require(hashes.size() == 1, "one hash of the parameters in every layout");
  const Arrived arrived = exchange(c, everybody, student, sender, held, 5);
  if (generator) check_receiver(c, *generator, arrived);
  everybody.all().barrier();
}

}  // namespace

void reshard_scenario() {
  const World::Options given = parallel::testing::child_world_options();
  World everybody(given);
  int64_t index = 0;
  for (const Case& c : cases()) {
    try {
      compare(c, given, everybody, given.store_prefix + "case-" + std::to_string(index++) + "/");
    } catch (const std::exception& e) {
      throw std::runtime_error(name_of(c) + ", rank " + std::to_string(given.rank) + ": " +
                               e.what());
    }
  }
}

// A generator that computes with other settings of the adapter, or without one, is no receiver.
TEST(ParametersHash, IsOfTheAdapterThatIsPushed) {
  const models::Decoder decoder = decoder_of({.adapter = true}, 1, {});
  models::LoraConfig louder = all_linear(), fewer = all_linear();
  louder.lora_alpha = 6.5;
  fewer.target_modules.pop_back();
  const std::set<std::string> hashes{
      parameters_hash(decoder, nullptr), parameters_hash(decoder, decoder.lora()),
      parameters_hash(decoder, &louder), parameters_hash(decoder, &fewer)};
  EXPECT_EQ(hashes.size(), 4u);
}

TEST(WeightReshard, BetweenAllLayouts) {
  const parallel::StoreServer store("127.0.0.1");
  auto ranks = parallel::testing::spawn_ranks(
      store, {.scenario = "reshard", .layout = {.dp = kProcesses}}, kProcesses);
  parallel::testing::expect_success(std::move(ranks), std::chrono::seconds(120));
}

}  // namespace retort::roles

int main(int argc, char** argv) {
  return retort::parallel::testing::ranks_or_tests(argc, argv,
                                                   {{"reshard", retort::roles::reshard_scenario}});
}

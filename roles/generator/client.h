// The trainer's side of a generator: samples that are drawn while it computes, and weights pushed
// to every replica.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "models/decoder/decoder.h"
#include "models/text/tokenizer.h"
#include "parallel/group.h"
#include "roles/generator/methods.h"
#include "roles/generator/pushed_weights.h"
#include "roles/generator/sample_stream.h"
#include "roles/generator/weight_broadcast.h"
#include "rpc/agent.h"
#include "rpc/peer_links.h"

namespace retort::roles {

// A request on its way; take it back with GeneratorClient::receive.
struct PendingSamples {
  GenerateRequest request;
  std::string generator;
  bool lost = false;    // with its generator, as wait_accepted() has found
  bool resent = false;  // since it was lost
  std::shared_ptr<SampleStream> stream;
  Future<Empty> accepted;
  Future<Empty> reply;  // when the stream has all samples
};

// What one rank of the trainer has sent; it has arrived.
struct SentWeights {
  std::vector<WeightReceipt> receipts;  // of each rank of a replica; the same for every replica
  double seconds = 0;
  uint64_t bytes = 0;  // to each replica
};

// Weights that have arrived everywhere but may not be in use yet.
struct PendingPush {
  uint64_t version = 0, checksum = 0;
  std::vector<Future<CommitReply>> replies;  // of each replica; invalid of one left behind
  double seconds = 0;                        // of the transfer, of the slowest sender
  uint64_t bytes = 0;                        // to each replica
};

// All replicas of one generator role. A replica of several ranks is spoken to through its first;
// weights go to each of its ranks. Threads: compute. Collectives: none. In a trainer of many ranks
// the leader of each dp rank asks for samples; the ranks of the first dp rank send the slices of
// the weights that they count, and one of them commits.
class GeneratorClient {
 public:
  struct Options {
    std::string role;  // "generator"
    // every rank of the role in order, already connected
    std::vector<std::string> peers;
    int64_t tp = 1;                              // that many consecutive peers are one replica
    std::chrono::milliseconds timeout{120'000};  // of every call but the one that waits for samples
    std::chrono::milliseconds generation_timeout{600'000};
    // Connects again to what was lost; outlives the client. Null: a lost generator is an error.
    rpc::PeerLinks* links = nullptr;
    std::chrono::milliseconds patience{0};  // with links: for how long all replicas may be away
    // A bucket that takes longer than this, and than four times the longest one so far, takes
    // another way (WeightBroadcast).
    std::chrono::milliseconds push_patience{2'000};
    // Weights leave from the student's device, which needs an entry in the agent's rpc.device_maps.
    // Else from host memory.
    bool weights_on_device = false;
    // A student with an adapter: that alone is pushed, and every replica adds it to its own model,
    // which has `base_weights` (GeneratorInfo). Else merged weights.
    bool adapter_alone = false;
    std::string base_weights;
  };
  // Handshake with every peer: tokenizer and parameters (names, shapes, dtypes of the whole model,
  // settings of the adapter that is pushed and the weights that it is added to) must be the
  // student's (kMismatch).
  GeneratorClient(rpc::Agent& agent, Options options, const models::Tokenizer& tokenizer,
                  const models::Decoder& student);

  // Sends a request to replica (request_id mod replicas); returns at once. Its samples are fetched
  // as they end, whatever this thread does; `listener` hears of each.
  PendingSamples send(GenerateRequest request, SampleListener listener = {});
  // Waits until the request stands in the generator's queue: from then on a push cannot overtake
  // it.
  void wait_accepted(PendingSamples& pending);
  // Waits for all samples: those of every prompt in a row, in the order of the request. They belong
  // to the request and have the shapes they promise (kMismatch, kCorrupt). Errors name the
  // generator and the step; kCancelled when a push with `abort` ended the request, or when it was
  // lost with its generator and the weights that it names are replaced everywhere by now.
  // `meanwhile`: called now and then while it waits; what it throws ends the wait.
  Samples receive(PendingSamples pending, double* waited = nullptr,
                  const std::function<void()>& meanwhile = {});

  // Sends what `decoder` counts of each parameter (adapter_alone: of the adapter) to every rank of
  // every replica that holds some of it, and nothing else, and returns when it has arrived; the
  // caller may change it then. Replicas pass it on to one another (WeightBroadcast), unless it
  // leaves from a device. With links those that are much slower than most are left to
  // PushedWeights.
  // `sender`: this rank's position among those that send. No commit may be waiting.
  SentWeights send_weights(const models::Decoder& decoder, uint64_t version, int64_t bucket_bytes,
                           int64_t sender = 0);
  // Has every replica take over what all senders sent. `abort`: samples in work are given up
  // instead of finished.
  PendingPush commit(uint64_t version, const std::vector<SentWeights>& sent, bool abort);
  // Both, for a trainer that has one sender.
  PendingPush push(const models::Decoder& decoder, uint64_t version, int64_t bucket_bytes,
                   bool abort);
  // Waits until the weights are in use everywhere, but for replicas that are away: those get them
  // when they are back (PushedWeights). kMismatch when a replica reports another version
  // or checksum.
  void wait_pushed(PendingPush pending);

  int64_t num_replicas() const { return static_cast<int64_t>(options_.peers.size()) / options_.tp; }

 private:
  void dispatch(PendingSamples& pending);
  void send_again(PendingSamples& pending);
  bool take(PendingSamples& pending, const std::function<void()>& meanwhile = {}) const;
  void watch(Future<Empty>& reply, const std::function<void()>& meanwhile) const;
  Future<CommitReply> watched(int64_t replica, Future<CommitReply> reply) const;
  void seal_and_send(WeightBroadcast& spread, WeightBroadcast::Buckets& buckets,
                     const WeightBroadcast::Buckets& earlier, SentWeights& sent);
  std::vector<WeightBroadcast::Peer> peers_in_order() const;
  bool passes(const Error& error) const;
  bool missed(int64_t replica) const;
  const std::string& leader(int64_t replica) const {
    return options_.peers.at(static_cast<size_t>(replica * options_.tp));
  }

  rpc::Agent& agent_;
  Options options_;
  int64_t vocab_rows_ = 0;
  int64_t positions_ = 0;                       // of the model: no episode has more tokens
  std::vector<std::vector<WeightSlice>> held_;  // by each rank of a replica
  std::unique_ptr<PushedWeights> pushed_;       // with links
  std::set<std::string> slow_;                  // in earlier pushes
  std::vector<std::string> missed_;             // the last push, or a part of it
};

// What the ranks of `group` sent, in their order: one all-gather; every rank calls with its own.
std::vector<SentWeights> gather_sent(parallel::Group& group, const SentWeights& mine);
// What the first rank of `group` received, on every rank: two broadcasts; every rank calls, the
// others' `received` is not looked at.
std::vector<Samples> share_samples(parallel::Group& group, std::vector<Samples> received);

}  // namespace retort::roles

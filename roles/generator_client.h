// The trainer's side of a generator: samples that are drawn while it computes, and weights pushed to every replica.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "models/decoder.h"
#include "models/text/tokenizer.h"
#include "roles/generator_methods.h"
#include "rpc/agent.h"

namespace retort::roles {

// A request on its way; take it back with GeneratorClient::receive.
struct PendingSamples {
  GenerateRequest request;
  std::string generator;
  rpc::Future<rpc::Empty> accepted;
  rpc::Future<Samples> reply;
};

// Weights that have arrived everywhere but may not be in use yet.
struct PendingPush {
  uint64_t version = 0, checksum = 0;
  std::vector<rpc::Future<CommitReply>> replies;  // of each replica
  double seconds = 0;                             // of the transfer
  uint64_t bytes = 0;                             // to each replica
};

// All replicas of one generator role. Threads: compute. Collectives: none; in a data-parallel trainer one rank pushes the weights and
// every rank asks for its own samples.
class GeneratorClient {
 public:
  struct Options {
    std::string role;                            // "generator"
    std::vector<std::string> replicas;           // peer names, already connected
    std::chrono::milliseconds timeout{120'000};  // of every call but the one that waits for samples
    std::chrono::milliseconds generation_timeout{600'000};
  };
  // Handshake with every replica: tokenizer and parameters (names, shapes, dtypes) must be the student's (kMismatch).
  GeneratorClient(rpc::Agent& agent, Options options, const models::Tokenizer& tokenizer, const models::Decoder& student);

  // Sends a request to replica (request_id mod replicas); returns at once.
  PendingSamples send(GenerateRequest request);
  // Waits until the request stands in the generator's queue: from then on a push cannot overtake it.
  void wait_accepted(PendingSamples& pending);
  // Waits, checks that the answer belongs to the request and has the shapes it promises (kMismatch, kCorrupt). Errors name the generator
  // and the step; kCancelled when a push with `abort` ended the request.
  Samples receive(PendingSamples pending, double* waited = nullptr);

  // Sends the decoder's parameters to every replica and returns when they have arrived; the caller may change them then. `abort`:
  // samples in work are given up instead of finished.
  PendingPush push(const models::Decoder& decoder, uint64_t version, int64_t bucket_bytes, bool abort);
  // Waits until the weights are in use everywhere; kMismatch when a replica reports another version or checksum.
  void wait_pushed(PendingPush pending);

 private:
  rpc::Agent& agent_;
  Options options_;
  int64_t vocab_rows_ = 0;
};

}  // namespace retort::roles

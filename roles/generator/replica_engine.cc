#include "roles/generator/replica_engine.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "models/checkpoint/checkpoint.h"
#include "models/generation/score.h"
#include "parallel/vote.h"
#include "roles/generator/requests.h"
#include "roles/generator/weight_buckets.h"
#include "roles/generator/weight_checksum.h"
#include "rpc/archive.h"

namespace retort::roles {
namespace {

at::Tensor bytes_tensor(int64_t size) { return at::empty({size}, at::kByte); }

models::EngineOptions merging(models::EngineOptions options) {
  options.merge_requests = true;
  return options;
}

}  // namespace

ReplicaEngine::ReplicaEngine(models::Decoder decoder, models::Tokenizer tokenizer,
                             models::EngineOptions options, std::string base_weights)
    : decoder_(std::move(decoder)),
      tokenizer_(std::move(tokenizer)),
      base_weights_(std::move(base_weights)),
      engine_(decoder_, merging(options),
              [this](std::span<const int32_t> ids) {
                return tokenizer_.decode(ids, /*skip_special_tokens=*/true);
              }),
      staging_(decoder_) {
  decoder_.set_requires_grad(false);
}

GeneratorInfo ReplicaEngine::info() const {
  return {.weight_version = weight_version(),
          .committed_version = staging_.checked(),
          .vocab_rows = decoder_.config().vocab_size,
          .max_position_embeddings = decoder_.config().max_position_embeddings,
          .vocabulary_fingerprint = tokenizer_.vocabulary_fingerprint(),
          .parameters = parameters_hash(decoder_, decoder_.lora()),
          .base_weights = base_weights_,
          .dtype = models::dtype_name(decoder_.dtype()),
          .tp = num_ranks(),
          .tp_rank = decoder_.placement().tp_rank(),
          .slices = weight_slices(decoder_)};
}

// Broadcasts {call, number, size of what follows} and then, if there is any, what follows.
void ReplicaEngine::announce(Call call, uint64_t number, const std::string& bytes) {
  if (num_ranks() == 1) return;
  RETORT_CHECK(leads()) << "a rank that follows decides";
  parallel::Group& tp = *decoder_.placement().tp;
  at::Tensor header = at::tensor({static_cast<int64_t>(call), static_cast<int64_t>(number),
                                  static_cast<int64_t>(bytes.size())},
                                 at::kLong);
  tp.broadcast(header, 0);
  if (bytes.empty()) return;
  at::Tensor body = bytes_tensor(static_cast<int64_t>(bytes.size()));
  std::copy(bytes.begin(), bytes.end(), static_cast<char*>(body.mutable_data_ptr()));
  tp.broadcast(body, 0);
}

bool ReplicaEngine::follow() {
  RETORT_CHECK(!leads()) << "the first rank has nobody to follow";
  parallel::Group& tp = *decoder_.placement().tp;
  at::Tensor header = at::empty({3}, at::kLong);
  tp.broadcast(header, 0);
  const auto* number = header.const_data_ptr<int64_t>();
  const auto call = static_cast<Call>(number[0]);
  std::string bytes;
  if (number[2] > 0) {
    at::Tensor body = bytes_tensor(number[2]);
    tp.broadcast(body, 0);
    bytes.assign(static_cast<const char*>(body.const_data_ptr()), static_cast<size_t>(number[2]));
  }
  if (call == Call::kStop) return false;
  // An error of a request is the same on all ranks, and the first rank answers it to the caller.
  // Any other error, and the loss of a rank, ends the replica.
  try {
    run(call, static_cast<uint64_t>(number[1]), bytes);
  } catch (const Error& error) {
    const bool of_the_request =
        call == Call::kSubmit || call == Call::kScore || call == Call::kCheck;
    if (!of_the_request || error.code() == ErrorCode::kCollective ||
        error.code() == ErrorCode::kTimeout)
      throw;
  }
  return true;
}

void ReplicaEngine::run(Call call, uint64_t number, const std::string& bytes) {
  // Each case is the half of a call that all ranks do alike.
  switch (call) {
    case Call::kIdle:
    case Call::kStop: break;
    case Call::kSubmit: submit_here(rpc::from_bytes<GenerateRequest>(bytes)); break;
    case Call::kStep: step_here(); break;
    case Call::kCancel: cancel_here(number); break;
    case Call::kScore: score_here(rpc::from_bytes<ForwardRequest>(bytes)); break;
    case Call::kCheck: check_here(rpc::from_bytes<CommitWeights>(bytes)); break;
    case Call::kApply: apply_here(); break;
    case Call::kUncheck: staging_.uncheck(); break;
  }
}

uint64_t ReplicaEngine::submit(const GenerateRequest& request) {
  if (num_ranks() > 1) announce(Call::kSubmit, 0, rpc::to_bytes(request));
  return submit_here(request);
}

uint64_t ReplicaEngine::submit_here(const GenerateRequest& request) {
  // No sample is finished before a step, and by then the number is known.
  const auto id = std::make_shared<uint64_t>(0);
  models::GenerationCallbacks callbacks;
  if (leads())
    callbacks.on_completion = [this, id](size_t index, const models::Completion& completion) {
      finished_.push_back(
          {.request = *id, .index = static_cast<int64_t>(index), .completion = completion});
    };
  *id = engine_.submit(unpack_request(request), std::move(callbacks));
  in_flight_.insert(*id);
  return *id;
}

bool ReplicaEngine::step() {
  if (engine_.idle()) return false;
  announce(Call::kStep);
  step_here();
  return true;
}

// A request that is done leaves the engine on every rank; its completions are in finished_ of the
// first one.
void ReplicaEngine::step_here() {
  engine_.step();
  std::erase_if(in_flight_, [&](uint64_t request) {
    const bool done = engine_.finished(request);
    if (done) engine_.take(request);
    return done;
  });
}

std::vector<FinishedSample> ReplicaEngine::finished() { return std::exchange(finished_, {}); }

void ReplicaEngine::cancel(uint64_t request) {
  announce(Call::kCancel, request);
  cancel_here(request);
}

void ReplicaEngine::cancel_here(uint64_t request) {
  if (engine_.cancel(request)) engine_.take(request);
  in_flight_.erase(request);
  std::erase_if(finished_, [&](const FinishedSample& sample) { return sample.request == request; });
}

std::vector<std::vector<float>> ReplicaEngine::score(const ForwardRequest& request) {
  if (num_ranks() > 1) announce(Call::kScore, 0, rpc::to_bytes(request));
  return score_here(request);
}

std::vector<std::vector<float>> ReplicaEngine::score_here(const ForwardRequest& request) const {
  const auto rows = split_rows(request.input_ids, request.cu_seqlens, "generator.score");
  return models::score(decoder_,
                       {.sequences = rows, .prompt_lengths = std::vector<int64_t>(rows.size(), 1)});
}

uint64_t ReplicaEngine::check(const CommitWeights& commit) {
  if (num_ranks() > 1) announce(Call::kCheck, 0, rpc::to_bytes(commit));
  return check_here(commit);
}

uint64_t ReplicaEngine::check_here(const CommitWeights& commit) {
  if (num_ranks() == 1) return weights_checksum(std::vector<uint64_t>{staging_.check(commit)});
  parallel::Group& tp = *decoder_.placement().tp;

  // The ranks vote, so that none takes over weights that another refuses. A rank whose own check
  // passed then takes buckets again.
  uint64_t mine = 0;
  try {
    mine = parallel::run_on_all(tp, [&] { return staging_.check(commit); });
  } catch (...) {
    staging_.uncheck();
    throw;
  }

  // The checksum of the replica is that of its ranks in order, as the sender forms it from its
  // receipts.
  const at::Tensor gathered =
      tp.all_gather(at::tensor({static_cast<int64_t>(mine)}, at::kLong)).contiguous();
  const auto* first = gathered.const_data_ptr<int64_t>();
  return weights_checksum(std::vector<uint64_t>(first, first + gathered.numel()));
}

void ReplicaEngine::apply() {
  announce(Call::kApply);
  apply_here();
}

void ReplicaEngine::apply_here() {
  staging_.apply();
  engine_.weights_changed();
}

void ReplicaEngine::uncheck() {
  announce(Call::kUncheck);
  staging_.uncheck();
}

void ReplicaEngine::idle() { announce(Call::kIdle); }
void ReplicaEngine::stop() { announce(Call::kStop); }

void ReplicaEngine::stage(WeightBucket bucket, const std::string& from) {
  staging_.add(std::move(bucket), from);
}

void ReplicaEngine::forget_staged(const std::function<std::set<std::string>()>& connected) {
  if (!staging_.forget_lost(connected)) return;
  RETORT_LOG(kInfo) << "weights that were not committed are thrown away: their sender is gone";
}

}  // namespace retort::roles

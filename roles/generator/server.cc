#include "roles/generator/server.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/tensor.h>

#include <limits>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "models/checkpoint.h"
#include "roles/generator/requests.h"
#include "roles/generator/samples.h"
#include "roles/generator/weight_staging.h"
#include "roles/serving_loop.h"

namespace retort::roles {
namespace {

using namespace std::chrono_literals;

models::EngineOptions merging(models::EngineOptions options) {
  options.merge_requests = true;
  return options;
}

std::set<std::string> connected_to(const rpc::Agent& agent) {
  const std::vector<std::string> peers = agent.peers();
  return {peers.begin(), peers.end()};
}

// A caller hears of a rank that was lost as of the loss of the whole replica, which then ends.
template <class Work>
auto as_one(const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCollective && error.code() != ErrorCode::kTimeout) throw;
    throw Error(ErrorCode::kPeerLost, "the generator's replica ends: " + error.message());
  }
}

}  // namespace

Generator::Generator(std::string name, models::Decoder decoder, models::Tokenizer tokenizer,
                     models::EngineOptions options)
    : name_(std::move(name)),
      tokenizer_(std::move(tokenizer)),
      replica_(std::move(decoder), tokenizer_, merging(options)) {}
Generator::~Generator() = default;

GeneratorInfo Generator::info() const {
  const models::Decoder& decoder = replica_.decoder();
  return {.name = name_,
          .weight_version = weight_version(),
          .committed_version = replica_.committed_version(),
          .vocab_rows = decoder.config().vocab_size,
          .max_position_embeddings = decoder.config().max_position_embeddings,
          .vocabulary_fingerprint = tokenizer_.vocabulary_fingerprint(),
          .parameters = parameters_hash(decoder),
          .dtype = models::dtype_name(decoder.dtype()),
          .tp = replica_.num_ranks(),
          .tp_rank = decoder.placement().tp_rank(),
          .slices = weight_slices(decoder)};
}

void Generator::submit(GenerateRequest request, const std::string& caller) {
  check_request(request);
  const Key key{caller, request.request_id};
  requests_.add(key, std::move(request));
}

Payload Generator::score(const ForwardRequest& request) {
  check_score_request(request);
  std::vector<float> flat;  // of the token after each position; none after the last of a sequence
  for (const auto& row : as_one([&] { return replica_.score(request); })) {
    flat.insert(flat.end(), row.begin(), row.end());
    flat.push_back(std::numeric_limits<float>::quiet_NaN());
  }
  Payload payload;
  payload.label = {
      .request_id = request.request_id,
      .teacher = name_,
      .weight_version = weight_version(),
      .sequence_hash = sequence_hash(request.input_ids, request.cu_seqlens, request.positions),
      .num_rows = request.positions.numel(),
      .spec = request.spec};
  payload.logps = at::tensor(flat, at::kFloat).index_select(0, request.positions.to(at::kLong));
  if (at::isnan(payload.logps).any().item<bool>())
    throw Error(ErrorCode::kInvalidArgument,
                "generator.score: a position is the last of its sequence; no token follows it");
  return payload;
}

Future<CommitReply> Generator::commit(const CommitWeights& request,
                                      const rpc::CallContext& caller) {
  Promise<CommitReply> reply;
  Future<CommitReply> future = reply.future();

  // A caller that missed the reply asks again: these weights are in use.
  const bool repeated = in_use_ && in_use_->version == request.version &&
                        in_use_->checksum == weights_checksum(request.receipts);
  if (repeated) {
    reply.set_value(*in_use_);
    return future;
  }

  // So does one that was connected again meanwhile.
  if (commit_ && commit_->version == request.version &&
      commit_->checksum == weights_checksum(request.receipts)) {
    commit_->reply.set_error(std::make_exception_ptr(
        Error(ErrorCode::kCancelled, "weights.commit: the same commit came again")));
    commit_->reply = std::move(reply);
    caller.clock->wait();
    commit_->cancelled = caller.cancelled;
    return future;
  }

  if (commit_)
    throw Error(ErrorCode::kUnavailable, "weights.commit: another commit is waiting")
        .with("version", commit_->version);
  const uint64_t checksum = as_one([&] { return replica_.check(request); });
  caller.clock->wait();  // for the samples in work
  commit_ = Commit{.version = request.version,
                   .checksum = checksum,
                   .reply = std::move(reply),
                   .cancelled = caller.cancelled};

  // Whoever waits for older weights hears at once that they are not drawn with any more.
  if (request.abort)
    for (const Key& key : requests_.unfinished_before(request.version))
      fail(key, ErrorCode::kCancelled,
           "given up for weights of version " + std::to_string(request.version));
  return future;
}

bool Generator::work() {
  forget_lost_callers();
  const bool begun = begin_due();
  const bool drawn = draw();
  if (begun || drawn || apply_commit()) {
    last_active_ = Clock::now();
    return true;
  }

  if (replica_.num_ranks() == 1) return false;
  replica_.idle();
  // The other ranks look after what they are sent (weights) between two broadcasts, so they must
  // not be far apart while there is traffic.
  if (Clock::now() - last_active_ > 500ms) return false;
  std::this_thread::sleep_for(2ms);
  return true;
}

// Gives the engine the requests that the weights in use are for. False when none was waiting.
bool Generator::begin_due() {
  const std::vector<Key> due = requests_.due(weight_version());
  for (const Key& key : due)
    begin(key);
  return !due.empty();
}

void Generator::begin(const Key& key) {
  Job& job = requests_.at(key);
  const uint64_t wanted = job.request.weight_version;
  if (wanted < weight_version())
    return fail(key, ErrorCode::kMismatch,
                "weights of version " + std::to_string(wanted) + " were replaced by version " +
                    std::to_string(weight_version()));
  try {
    requests_.begin_draw(key, as_one([&] { return replica_.submit(job.request); }));
  } catch (const Error&) {
    requests_.finish(key, {std::nullopt, std::current_exception()});
  }
}

// One forward for the requests that the engine has, if there are any.
bool Generator::draw() {
  const std::vector<Key> drawn = requests_.drawn();
  if (drawn.empty()) return false;
  try {
    replica_.step();
    for (const Key& key : drawn) {
      const Job& job = requests_.at(key);
      if (replica_.finished(*job.engine_id)) requests_.finish(key, {samples_of(job), nullptr});
    }
  } catch (const std::exception& error) {
    // An engine that fails in the middle is of no use any more: to its callers it is lost.
    const auto lost = std::make_exception_ptr(
        Error(ErrorCode::kPeerLost, std::string("the generator ends: ") + error.what()));
    for (const Key& key : requests_.drawn())
      requests_.finish(key, {std::nullopt, lost});
    throw;
  }
  return true;
}

Samples Generator::samples_of(const Job& job) {
  Samples samples = pack_completions(replica_.take(*job.engine_id));
  samples.request_id = job.request.request_id;
  samples.generator = name_;
  samples.weight_version = weight_version();
  samples.sequence_hash =
      sequence_hash(job.request.prompt_ids, job.request.cu_seqlens, at::empty({0}, at::kInt));
  samples.seconds = std::chrono::duration<double>(Clock::now() - job.started).count();
  tokens_ += samples.token_ids.numel();
  ++served_;
  return samples;
}

// Called when no request for the weights in use is left: new ones take their place. False when
// there are none.
bool Generator::apply_commit() {
  if (!commit_) return false;
  replica_.apply();
  in_use_ = CommitReply{.version = weight_version(), .checksum = commit_->checksum};
  commit_->reply.set_value(*in_use_);
  commit_.reset();
  return true;
}

void Generator::fail(const Key& key, ErrorCode code, const std::string& message) {
  give_up(key);
  const int64_t step = requests_.at(key).request.step;
  requests_.finish(
      key,
      {std::nullopt,
       std::make_exception_ptr(
           Error(code, "generator: " + message).with("request", key.second).with("step", step))});
}

// The engine no longer draws it, if it does.
void Generator::give_up(const Key& key) {
  Job& job = requests_.at(key);
  if (!job.engine_id) return;
  replica_.give_up(*job.engine_id);
  job.engine_id.reset();
}

void Generator::forget_lost_callers() {
  if (agent_ && !requests_.empty())
    for (const Key& key : requests_.unwanted(connected_to(*agent_))) {
      give_up(key);
      requests_.forget(key);
    }
  if (commit_ && commit_->cancelled->load()) discard_commit();
  forget_lost_senders();
}

// Whoever sent a part of weights that are not committed and is gone will not commit them.
void Generator::forget_lost_senders() {
  if (agent_ && replica_.has_staged()) replica_.forget_staged(connected_to(*agent_));
}

// On all ranks, which take buckets again from then on.
void Generator::discard_commit() {
  RETORT_LOG(kInfo) << "weights of version " << commit_->version
                    << " are not taken over: who committed them no longer waits";
  replica_.uncheck();
  commit_->reply.set_error(std::make_exception_ptr(
      Error(ErrorCode::kCancelled, "weights.commit: the caller no longer waits")));
  commit_.reset();
}

void Generator::lead(rpc::HandlerQueue& queue, const std::function<bool()>& stop,
                     const std::function<void(int64_t)>& tick, std::chrono::milliseconds slice) {
  run_serving_loop(
      queue, stop, tick, [this] { return work(); }, slice);
  replica_.stop();
}

void Generator::follow(rpc::HandlerQueue& queue, const std::function<void()>& tick) {
  while (replica_.follow()) {
    run_jobs(queue, 0ms, kCallSlice);
    forget_lost_senders();
    if (tick) tick();
  }
}

void Generator::serve(rpc::Agent& agent, std::shared_ptr<rpc::HandlerQueue> queue) {
  agent_ = &agent;
  agent.serve(kGeneratorInfo, queue, [this](Empty, const rpc::CallContext&) { return info(); });
  agent.serve(kWeightsBucket, queue, [this](WeightBucket bucket, const rpc::CallContext& caller) {
    last_active_ = Clock::now();
    replica_.stage(std::move(bucket), caller.peer);
    return Empty{};
  });
  if (leads()) serve_leader(agent, queue);
}

void Generator::serve_leader(rpc::Agent& agent, const std::shared_ptr<rpc::HandlerQueue>& queue) {
  agent.serve(kGenerateSubmit, queue, [this](GenerateRequest r, const rpc::CallContext& caller) {
    submit(std::move(r), caller.peer);
    return Empty{};
  });
  agent.serve(kGenerateCollect, queue, [this](CollectRequest r, const rpc::CallContext& caller) {
    return requests_.collect(r.request_id, caller);
  });
  agent.serve(kGeneratorScore, queue,
              [this](ForwardRequest r, const rpc::CallContext&) { return score(r); });
  agent.serve(kWeightsCommit, queue, [this](CommitWeights r, const rpc::CallContext& caller) {
    return commit(r, caller);
  });
}

}  // namespace retort::roles

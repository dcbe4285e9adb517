#include "roles/generator/server.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/tensor.h>

#include <limits>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "roles/generator/replica_engine.h"
#include "roles/generator/requests.h"
#include "roles/generator/samples.h"
#include "roles/generator/weight_checksum.h"
#include "roles/serving_loop.h"

namespace retort::roles {
namespace {

using namespace std::chrono_literals;

std::set<std::string> connected_to(const rpc::Agent& agent) {
  const std::vector<std::string> peers = agent.peers();
  return {peers.begin(), peers.end()};
}

// Turns the loss of a rank into the loss of the replica, which then ends: to a caller it is one
// peer.
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

Generator::Generator(std::string name, std::unique_ptr<SampleBackend> backend)
    : name_(std::move(name)), backend_(std::move(backend)) {}
Generator::Generator(std::string name, models::Decoder decoder, models::Tokenizer tokenizer,
                     models::EngineOptions options, std::string base_weights)
    : Generator(std::move(name),
                std::make_unique<ReplicaEngine>(std::move(decoder), std::move(tokenizer), options,
                                                std::move(base_weights))) {}
Generator::~Generator() = default;

GeneratorInfo Generator::info() const {
  GeneratorInfo info = backend_->info();
  info.name = name_;
  return info;
}

void Generator::submit(GenerateRequest request, const rpc::CallContext& caller) {
  check_request(request);
  // A process that was replaced may be connected still, if nobody has noticed its end. What it left
  // is forgotten.
  for (const Key& key : requests_.of_earlier_process(caller.peer, caller.process))
    forget(key);
  const Key key{caller.peer, request.request_id};
  requests_.add(key, std::move(request), caller.process);
}

Payload Generator::score(const ForwardRequest& request) {
  check_score_request(request);

  // NaN stands where no token follows, so that a request for such a position is seen below.
  std::vector<float> flat;  // of the token after each position; none after the last of a sequence
  for (const auto& row : as_one([&] { return backend_->score(request); })) {
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

  // A caller that was connected again meanwhile asks again too: its new call takes the place of the
  // old one.
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
  // All ranks check before the commit waits, so that what is wrong is answered at once.
  const uint64_t checksum = as_one([&] { return backend_->check(request); });
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
  // New weights are taken over only when nothing was begun or drawn, so that no request sees two
  // versions.
  const bool begun = begin_due();
  const bool drawn = draw();
  if (begun || drawn || apply_commit()) return true;
  // The other ranks wait for a call of this one. idle() is such a call: they handle their own calls
  // after it, and do not wait beyond the timeout of their group.
  backend_->idle();
  return false;
}

// Gives the backend the requests that the weights in use are for. False when none was waiting.
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

  // Only from here on is the request labelled with the weights in use: every token of it is drawn
  // with them.
  try {
    const uint64_t id = as_one([&] { return backend_->submit(job.request); });
    drawing_[id] = key;
    requests_.begin_draw(key, id, label_of(job.request));
  } catch (const Error&) {
    requests_.fail(key, std::current_exception());
  }
}

// One step for the requests that the backend has, if there are any.
bool Generator::draw() {
  if (drawing_.empty()) return false;
  try {
    const bool stepped = backend_->step();
    std::vector<FinishedSample> finished = backend_->finished();
    if (!stepped && finished.empty())
      throw Error(ErrorCode::kUnavailable, "the engine is idle, but has not finished its requests")
          .with("unfinished", drawing_.size());
    for (FinishedSample& sample : finished)
      pass_on(std::move(sample));
    requests_.answer();
  } catch (const std::exception& error) {
    // An engine that fails in the middle is of no use any more: to its callers it is lost.
    const auto lost = std::make_exception_ptr(
        Error(ErrorCode::kPeerLost, std::string("the generator ends: ") + error.what()));
    while (!drawing_.empty())
      fail_drawing(drawing_.begin()->first, lost);
    throw;
  }
  return true;
}

// Whoever collects it gets it when answer() is called. A request is done with its last sample.
void Generator::pass_on(FinishedSample sample) {
  if (sample.error) return fail_drawing(sample.request, sample.error);
  const auto found = drawing_.find(sample.request);
  RETORT_CHECK(found != drawing_.end())
      << "a sample of request " << sample.request << ", which the backend does not have";

  tokens_ += drawn_tokens(sample.completion);
  const bool done =
      requests_.add_completion(found->second, {sample.index, std::move(sample.completion)});
  if (!done) return;
  drawing_.erase(found);
  ++served_;
}

void Generator::fail_drawing(uint64_t request, const std::exception_ptr& error) {
  const auto found = drawing_.find(request);
  RETORT_CHECK(found != drawing_.end())
      << "an error of request " << request << ", which the backend does not have";
  const Key key = found->second;
  drawing_.erase(found);
  requests_.fail(key, error);
}

// Returns what all answers to a request have in common.
Samples Generator::label_of(const GenerateRequest& request) const {
  Samples label;
  label.generator = name_;
  label.weight_version = weight_version();
  label.sequence_hash =
      sequence_hash(request.prompt_ids, request.cu_seqlens, at::empty({0}, at::kInt));
  return label;
}

// Called when no request for the weights in use is left: new ones take their place. False when
// there are none.
bool Generator::apply_commit() {
  if (!commit_) return false;
  backend_->apply();
  in_use_ = CommitReply{.version = weight_version(), .checksum = commit_->checksum};
  commit_->reply.set_value(*in_use_);
  commit_.reset();
  return true;
}

void Generator::fail(const Key& key, ErrorCode code, const std::string& message) {
  give_up(key);
  const int64_t step = requests_.at(key).request.step;
  requests_.fail(
      key,
      std::make_exception_ptr(
          Error(code, "generator: " + message).with("request", key.second).with("step", step)));
}

// Tells the backend that the job is no longer drawn, if it is.
void Generator::give_up(const Key& key) {
  Job& job = requests_.at(key);
  if (!job.engine_id) return;
  backend_->cancel(*job.engine_id);
  drawing_.erase(*job.engine_id);
  job.engine_id.reset();
}

void Generator::forget(const Key& key) {
  give_up(key);
  requests_.forget(key);
}

void Generator::forget_lost_callers() {
  if (agent_ && !requests_.empty())
    for (const Key& key : requests_.unwanted(connected_to(*agent_)))
      forget(key);
  if (commit_ && commit_->cancelled->load()) discard_commit();
  forget_lost_senders();
}

// Whoever sent a part of weights that are not committed and is gone will not commit them.
void Generator::forget_lost_senders() {
  if (agent_ && backend_->has_staged())
    backend_->forget_staged([this] { return connected_to(*agent_); });
}

// Gives up the commit on all ranks, which take buckets again from then on.
void Generator::discard_commit() {
  RETORT_LOG(kInfo) << "weights of version " << commit_->version
                    << " are not taken over: who committed them no longer waits";
  backend_->uncheck();
  commit_->reply.set_error(std::make_exception_ptr(
      Error(ErrorCode::kCancelled, "weights.commit: the caller no longer waits")));
  commit_.reset();
}

void Generator::follow(rpc::HandlerQueue& queue, const std::function<void()>&) {
  while (backend_->follow()) {
    run_jobs(queue, 0ms, kCallSlice);
    forget_lost_senders();
  }
}

Progress Generator::progress() const {
  return {tokens_, "tokens drawn", ", weights " + std::to_string(weight_version())};
}

std::string Generator::summary() const {
  return std::to_string(tokens_) + " tokens drawn in " + std::to_string(served_) + " requests" +
         backend_->summary();
}

void Generator::serve(rpc::Agent& agent, std::shared_ptr<rpc::HandlerQueue> queue) {
  agent_ = &agent;
  for (HandlerThread* thread : {&passes_, &buckets_})
    thread->use_device(agent.device());
  agent.serve(kGeneratorInfo, queue, [this](Empty, const rpc::CallContext&) { return info(); });
  agent.serve(kWeightsBucket, buckets_.queue(),
              [this](WeightBucket bucket, const rpc::CallContext& caller) {
                // The replica that passes a bucket on may go. What counts is whether the one that
                // pushes is there.
                const std::string from = bucket.origin.empty() ? caller.peer : bucket.origin;
                backend_->stage(std::move(bucket), from);
                return Empty{};
              });
  agent.serve(kWeightsPass, passes_.queue(),
              [this, passer = std::make_shared<WeightRelay>(agent)](
                  const PassWeights& request, const rpc::CallContext& caller) {
                caller.clock->wait();  // for the other replica, however slow
                return passer->pass(request, backend_->staged_bucket(
                                                 request.version, request.sender, request.index));
              });
  if (leads()) serve_leader(agent, queue);
}

void Generator::serve_leader(rpc::Agent& agent, const std::shared_ptr<rpc::HandlerQueue>& queue) {
  agent.serve(kGenerateSubmit, queue, [this](GenerateRequest r, const rpc::CallContext& caller) {
    submit(std::move(r), caller);
    return Empty{};
  });
  agent.serve(kGenerateCollect, queue, [this](CollectRequest r, const rpc::CallContext& caller) {
    return requests_.collect(r, caller);
  });
  agent.serve(kGeneratorScore, queue,
              [this](ForwardRequest r, const rpc::CallContext&) { return score(r); });
  agent.serve(kWeightsCommit, queue, [this](CommitWeights r, const rpc::CallContext& caller) {
    return commit(r, caller);
  });
}

}  // namespace retort::roles

#include "roles/generator/server.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <thread>

#include "base/error.h"
#include "models/checkpoint.h"

namespace retort::roles {
namespace {

using namespace std::chrono_literals;

constexpr size_t kMaxUncollected = 256;

template <class T>
void append(std::vector<T>& all, const std::vector<T>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace

Generator::Generator(std::string name, models::Decoder decoder, models::Tokenizer tokenizer,
                     models::EngineOptions options)
    : name_(std::move(name)),
      tokenizer_(std::move(tokenizer)),
      replica_(std::move(decoder), tokenizer_, options) {}
Generator::~Generator() = default;

GeneratorInfo Generator::info() const {
  const models::Decoder& decoder = replica_.decoder();
  return {.name = name_,
          .weight_version = weight_version(),
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
  const Key key{caller, request.request_id};
  if (jobs_.contains(key))
    throw Error(ErrorCode::kInvalidArgument, "generator.submit: the request id is in use")
        .with("request", request.request_id);
  if (jobs_.size() >= kMaxUncollected)
    throw Error(ErrorCode::kResourceExhausted,
                "too many requests of a generator are neither done nor collected");
  Job job;
  const auto prompts = static_cast<int64_t>(
      split_rows(request.prompt_ids, request.cu_seqlens, "generator.submit").size());
  const int64_t samples = prompts * request.num_generations;
  if (request.num_generations < 1 || !request.sample_ids.defined() ||
      request.sample_ids.scalar_type() != at::kLong || request.sample_ids.numel() != samples)
    throw Error(ErrorCode::kInvalidArgument,
                "generator.submit: expected an int64 sample id for each of the completions")
        .with("completions", samples);
  job.request = std::move(request);
  jobs_.emplace(key, std::move(job));
  waiting_.push_back(key);
}

Future<Samples> Generator::collect(uint64_t request_id, const rpc::CallContext& context) {
  const Key key{context.peer, request_id};
  const auto found = jobs_.find(key);
  if (found == jobs_.end())
    throw Error(ErrorCode::kInvalidArgument,
                "generator.collect: no such request, or it was collected")
        .with("request", request_id);
  Promise<Samples> promise;
  auto future = promise.future();
  if (found->second.outcome) {
    promise.complete(std::move(*found->second.outcome));
    jobs_.erase(found);
    return future;
  }
  found->second.collector = promise;
  found->second.cancelled = context.cancelled;
  return future;
}

Payload Generator::score(const ForwardRequest& request) {
  if (request.spec.kind != PayloadKind::kTargetLogProbs)
    throw Error(ErrorCode::kInvalidArgument,
                "generator.score answers target_logps only; a teacher role answers the rest");
  std::vector<float> flat;  // of the token after each position; none after the last of a sequence
  for (const auto& row : replica_.score(request)) {
    append(flat, row);
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

Future<CommitReply> Generator::commit(CommitWeights request) {
  if (commit_)
    throw Error(ErrorCode::kInvalidArgument, "weights.commit: another commit is waiting");
  const uint64_t checksum = replica_.check(request);
  commit_.emplace(Commit{.request = request, .checksum = checksum, .reply = {}});
  auto reply = commit_->reply.future();
  if (request.abort) {
    std::vector<Key> old;
    for (const auto& [key, job] : jobs_)
      if (!job.outcome && job.request.weight_version < request.version) old.push_back(key);
    for (const Key& key : old)
      fail(key, ErrorCode::kCancelled,
           "given up for weights of version " + std::to_string(request.version));
  }
  return reply;
}

void Generator::finish(const Key& key, Outcome<Samples> outcome) {
  Job& job = jobs_.at(key);
  std::erase(waiting_, key);
  if (active_ == key) active_.reset();
  if (job.collector) {
    job.collector->complete(std::move(outcome));
    jobs_.erase(key);
  } else {
    job.outcome = std::move(outcome);
  }
}

void Generator::fail(const Key& key, ErrorCode code, const std::string& message) {
  if (active_ == key) replica_.give_up(jobs_.at(key).engine_id);
  finish(key,
         {std::nullopt, std::make_exception_ptr(Error(code, "generator: " + message)
                                                    .with("request", key.second)
                                                    .with("step", jobs_.at(key).request.step))});
}

void Generator::start(const Key& key) {
  Job& job = jobs_.at(key);
  job.started = std::chrono::steady_clock::now();
  active_ = key;
  try {
    job.engine_id = replica_.submit(job.request);
  } catch (const Error&) {
    finish(key, {std::nullopt, std::current_exception()});
  }
}

Samples Generator::samples_of(const Job& job) {
  const auto completions = replica_.take(job.engine_id);
  std::vector<int32_t> ids, ends{0};
  std::vector<float> logps, sampling_logps;
  at::Tensor reasons = at::empty({static_cast<int64_t>(completions.size())}, at::kByte);
  for (size_t i = 0; i < completions.size(); ++i) {
    append(ids, completions[i].token_ids);
    append(logps, completions[i].logps);
    append(sampling_logps, completions[i].sampling_logps);
    ends.push_back(static_cast<int32_t>(ids.size()));
    reasons.mutable_data_ptr<uint8_t>()[i] = static_cast<uint8_t>(completions[i].finish_reason);
  }
  tokens_ += static_cast<int64_t>(ids.size());
  ++served_;
  const at::Tensor none = at::empty({0}, at::kInt);
  return {
      .request_id = job.request.request_id,
      .generator = name_,
      .weight_version = weight_version(),
      .sequence_hash = sequence_hash(job.request.prompt_ids, job.request.cu_seqlens, none),
      .token_ids = at::tensor(ids, at::kInt),
      .cu_seqlens = at::tensor(ends, at::kInt),
      .logps = at::tensor(logps, at::kFloat),
      .sampling_logps = at::tensor(sampling_logps, at::kFloat),
      .finish_reasons = reasons,
      .seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - job.started).count()};
}

void Generator::apply_commit() {
  replica_.apply();
  commit_->reply.set_value({.version = weight_version(), .checksum = commit_->checksum});
  commit_.reset();
}

// A caller that is lost, or no longer waits, has its request given up.
void Generator::forget_cancelled() {
  std::vector<Key> gone;
  for (const auto& [key, job] : jobs_)
    if (job.cancelled && job.cancelled->load()) gone.push_back(key);
  for (const Key& key : gone)
    fail(key, ErrorCode::kCancelled, "the caller no longer waits");
}

bool Generator::work() {
  forget_cancelled();
  if (draw() || begin_next()) {
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

// One forward for the request in work, if there is one.
bool Generator::draw() {
  if (!active_) return false;
  const Key key = *active_;
  try {
    replica_.step();
    const Job& job = jobs_.at(key);
    if (replica_.finished(job.engine_id)) finish(key, {samples_of(job), nullptr});
  } catch (...) {
    finish(key, {std::nullopt, std::current_exception()});
    throw;  // an engine that fails in the middle is of no use any more
  }
  return true;
}

// Begins the next request that the weights in use are for; without any, new weights take their
// place.
bool Generator::begin_next() {
  for (const Key& next : waiting_) {
    const uint64_t wanted = jobs_.at(next).request.weight_version;
    if (wanted > weight_version()) continue;
    const Key key = next;  // whoever ends a request takes it out of waiting_
    if (wanted < weight_version())
      fail(key, ErrorCode::kMismatch,
           "weights of version " + std::to_string(wanted) + " were replaced by version " +
               std::to_string(weight_version()));
    else
      start(key);
    return true;
  }
  if (!commit_) return false;
  apply_commit();
  return true;
}

void Generator::follow(rpc::HandlerQueue& queue, const std::function<void()>& tick) {
  while (replica_.follow()) {
    while (auto job = queue.pop(Deadline::after(0ms)))
      (*job)();
    if (tick) tick();
  }
}

void Generator::serve(rpc::Agent& agent, std::shared_ptr<rpc::HandlerQueue> queue) {
  agent.serve(kGeneratorInfo, queue, [this](Empty, const rpc::CallContext&) { return info(); });
  agent.serve(kWeightsBucket, queue, [this](WeightBucket bucket, const rpc::CallContext&) {
    last_active_ = Clock::now();
    replica_.stage(std::move(bucket));
    return Empty{};
  });
  if (!leads()) return;
  agent.serve(kGenerateSubmit, queue, [this](GenerateRequest r, const rpc::CallContext& context) {
    submit(std::move(r), context.peer);
    return Empty{};
  });
  agent.serve(kGenerateCollect, queue, [this](CollectRequest r, const rpc::CallContext& context) {
    return collect(r.request_id, context);
  });
  agent.serve(kGeneratorScore, queue,
              [this](ForwardRequest r, const rpc::CallContext&) { return score(r); });
  agent.serve(kWeightsCommit, queue,
              [this](CommitWeights r, const rpc::CallContext&) { return commit(r); });
}

}  // namespace retort::roles

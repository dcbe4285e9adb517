#include "roles/generator.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "models/checkpoint.h"
#include "models/generation/score.h"

namespace retort::roles {
namespace {

constexpr size_t kMaxUncollected = 256;

std::vector<int32_t> to_vector(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kInt).contiguous();
  return {flat.const_data_ptr<int32_t>(), flat.const_data_ptr<int32_t>() + flat.numel()};
}

std::vector<std::vector<int32_t>> split_rows(const at::Tensor& ids, const at::Tensor& cu_seqlens, const char* method) {
  const auto vector_of_int = [](const at::Tensor& t) { return t.defined() && t.dim() == 1 && t.scalar_type() == at::kInt; };
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, std::string(method) + ": " + what);
  };
  if (!vector_of_int(ids) || !vector_of_int(cu_seqlens) || cu_seqlens.numel() < 1)
    refuse("ids and cu_seqlens must be vectors of int32");
  const std::vector<int32_t> flat = to_vector(ids), ends = to_vector(cu_seqlens);
  if (ends.front() != 0 || ends.back() != static_cast<int32_t>(flat.size()) || !std::is_sorted(ends.begin(), ends.end()))
    refuse("cu_seqlens must rise from 0 to the number of ids");
  std::vector<std::vector<int32_t>> rows;
  for (size_t i = 0; i + 1 < ends.size(); ++i) rows.emplace_back(flat.begin() + ends[i], flat.begin() + ends[i + 1]);
  return rows;
}

template <class T>
void append(std::vector<T>& all, const std::vector<T>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace

Generator::Generator(std::string name, models::Decoder decoder, models::Tokenizer tokenizer, models::EngineOptions options)
    : name_(std::move(name)),
      decoder_(std::move(decoder)),
      tokenizer_(std::move(tokenizer)),
      engine_(decoder_, options,
              [this](std::span<const int32_t> ids) { return tokenizer_.decode(ids, /*skip_special_tokens=*/true); }),
      staging_(decoder_) {
  decoder_.set_requires_grad(false);
}
Generator::~Generator() = default;

GeneratorInfo Generator::info() const {
  return {.name = name_,
          .weight_version = version_,
          .vocab_rows = decoder_.config().vocab_size,
          .max_position_embeddings = decoder_.config().max_position_embeddings,
          .vocabulary_fingerprint = tokenizer_.vocabulary_fingerprint(),
          .parameters = parameters_hash(decoder_),
          .dtype = models::dtype_name(decoder_.head_weight().scalar_type())};
}

void Generator::submit(GenerateRequest request, const std::string& caller) {
  const Key key{caller, request.request_id};
  if (jobs_.contains(key))
    throw Error(ErrorCode::kInvalidArgument, "generator.submit: the request id is in use").with("request", request.request_id);
  if (jobs_.size() >= kMaxUncollected)
    throw Error(ErrorCode::kResourceExhausted, "too many requests of a generator are neither done nor collected");
  Job job;
  job.prompts = split_rows(request.prompt_ids, request.cu_seqlens, "generator.submit");
  const int64_t samples = static_cast<int64_t>(job.prompts.size()) * request.num_generations;
  if (request.num_generations < 1 || !request.sample_ids.defined() || request.sample_ids.scalar_type() != at::kLong ||
      request.sample_ids.numel() != samples)
    throw Error(ErrorCode::kInvalidArgument, "generator.submit: expected an int64 sample id for each of the completions")
        .with("completions", samples);
  job.request = std::move(request);
  jobs_.emplace(key, std::move(job));
  waiting_.push_back(key);
}

rpc::Future<Samples> Generator::collect(uint64_t request_id, const rpc::CallContext& context) {
  const Key key{context.peer, request_id};
  const auto found = jobs_.find(key);
  if (found == jobs_.end())
    throw Error(ErrorCode::kInvalidArgument, "generator.collect: no such request, or it was collected")
        .with("request", request_id);
  rpc::Promise<Samples> promise;
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

Payload Generator::score(const ForwardRequest& request) const {
  if (request.spec.kind != PayloadKind::kTargetLogProbs)
    throw Error(ErrorCode::kInvalidArgument, "generator.score answers target_logps only; a teacher role answers the rest");
  const auto rows = split_rows(request.input_ids, request.cu_seqlens, "generator.score");
  const std::vector<int64_t> lengths(rows.size(), 1);
  const auto logps = models::score(decoder_, {.sequences = rows, .prompt_lengths = lengths});
  std::vector<float> flat;  // of the token after each position; none after the last of a sequence
  for (const auto& row : logps) {
    append(flat, row);
    flat.push_back(std::numeric_limits<float>::quiet_NaN());
  }
  Payload payload;
  payload.label = {.request_id = request.request_id,
                   .teacher = name_,
                   .weight_version = version_,
                   .sequence_hash = sequence_hash(request.input_ids, request.cu_seqlens, request.positions),
                   .num_rows = request.positions.numel(),
                   .spec = request.spec};
  payload.logps = at::tensor(flat, at::kFloat).index_select(0, request.positions.to(at::kLong));
  if (at::isnan(payload.logps).any().item<bool>())
    throw Error(ErrorCode::kInvalidArgument, "generator.score: a position is the last of its sequence; no token follows it");
  return payload;
}

rpc::Future<CommitReply> Generator::commit(CommitWeights request) {
  if (commit_) throw Error(ErrorCode::kInvalidArgument, "weights.commit: another commit is waiting");
  const uint64_t checksum = staging_.check(request);
  commit_.emplace(Commit{.request = request, .checksum = checksum, .reply = {}});
  auto reply = commit_->reply.future();
  if (request.abort) {
    std::vector<Key> old;
    for (const auto& [key, job] : jobs_)
      if (!job.outcome && job.request.weight_version < request.version) old.push_back(key);
    for (const Key& key : old)
      fail(key, ErrorCode::kCancelled, "given up for weights of version " + std::to_string(request.version));
  }
  return reply;
}

void Generator::finish(const Key& key, rpc::Outcome<Samples> outcome) {
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
  if (active_ == key) {
    const uint64_t id = jobs_.at(key).engine_id;
    engine_.cancel(id);
    engine_.take(id);  // or the engine would keep what was drawn
  }
  finish(key, {std::nullopt,
               std::make_exception_ptr(
                   Error(code, "generator: " + message).with("request", key.second).with("step", jobs_.at(key).request.step))});
}

void Generator::start(const Key& key) {
  Job& job = jobs_.at(key);
  const DrawOptions& draw = job.request.draw;
  models::GenerationRequest request;
  request.prompts = job.prompts;
  request.num_generations = job.request.num_generations;
  const at::Tensor ids = job.request.sample_ids.contiguous();
  for (int64_t i = 0; i < ids.numel(); ++i) request.sample_ids.push_back(static_cast<uint64_t>(ids.const_data_ptr<int64_t>()[i]));
  request.sampling = {.temperature = draw.temperature,
                      .top_p = draw.top_p,
                      .top_k = draw.top_k,
                      .min_p = draw.min_p,
                      .repetition_penalty = draw.repetition_penalty,
                      .num_ids = draw.num_ids,
                      .seed = draw.seed};
  request.max_new_tokens = draw.max_new_tokens;
  request.eos_token_ids = draw.eos_token_ids;
  request.stop = draw.stop;
  job.started = std::chrono::steady_clock::now();
  active_ = key;
  try {
    job.engine_id = engine_.submit(std::move(request));
  } catch (const Error&) {
    finish(key, {std::nullopt, std::current_exception()});
  }
}

Samples Generator::samples_of(const Job& job) {
  const auto completions = engine_.take(job.engine_id);
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
  return {.request_id = job.request.request_id,
          .generator = name_,
          .weight_version = version_,
          .sequence_hash = sequence_hash(job.request.prompt_ids, job.request.cu_seqlens, none),
          .token_ids = at::tensor(ids, at::kInt),
          .cu_seqlens = at::tensor(ends, at::kInt),
          .logps = at::tensor(logps, at::kFloat),
          .sampling_logps = at::tensor(sampling_logps, at::kFloat),
          .finish_reasons = reasons,
          .seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - job.started).count()};
}

void Generator::apply_commit() {
  staging_.apply();
  engine_.weights_changed();
  version_ = commit_->request.version;
  commit_->reply.set_value({.version = version_, .checksum = commit_->checksum});
  commit_.reset();
}

// A caller that is lost, or no longer waits, has its request given up.
void Generator::forget_cancelled() {
  std::vector<Key> gone;
  for (const auto& [key, job] : jobs_)
    if (job.cancelled && job.cancelled->load()) gone.push_back(key);
  for (const Key& key : gone) fail(key, ErrorCode::kCancelled, "the caller no longer waits");
}

bool Generator::work() {
  forget_cancelled();
  if (active_) {
    const Key key = *active_;
    try {
      engine_.step();
      const Job& job = jobs_.at(key);
      if (engine_.finished(job.engine_id)) finish(key, {samples_of(job), nullptr});
    } catch (...) {
      finish(key, {std::nullopt, std::current_exception()});
      throw;  // an engine that fails in the middle is of no use any more
    }
    return true;
  }
  for (const Key& next : waiting_) {
    const uint64_t wanted = jobs_.at(next).request.weight_version;
    if (wanted > version_) continue;
    const Key key = next;  // whoever ends a request takes it out of waiting_
    if (wanted < version_)
      fail(key, ErrorCode::kMismatch,
           "weights of version " + std::to_string(wanted) + " were replaced by version " + std::to_string(version_));
    else
      start(key);
    return true;
  }
  if (commit_) {
    apply_commit();
    return true;
  }
  return false;
}

void Generator::serve(rpc::Agent& agent, std::shared_ptr<rpc::HandlerQueue> queue) {
  agent.serve(kGeneratorInfo, queue, [this](rpc::Empty, const rpc::CallContext&) { return info(); });
  agent.serve(kGenerateSubmit, queue, [this](GenerateRequest r, const rpc::CallContext& context) {
    submit(std::move(r), context.peer);
    return rpc::Empty{};
  });
  agent.serve(kGenerateCollect, queue,
              [this](CollectRequest r, const rpc::CallContext& context) { return collect(r.request_id, context); });
  agent.serve(kGeneratorScore, queue, [this](ForwardRequest r, const rpc::CallContext&) { return score(r); });
  agent.serve(kWeightsBucket, queue, [this](WeightBucket bucket, const rpc::CallContext&) {
    if (commit_)
      throw Error(ErrorCode::kInvalidArgument, "weights.bucket: weights of version " + std::to_string(commit_->request.version) +
                                                   " are committed and wait for samples in work; wait until they are in use");
    staging_.add(std::move(bucket), version_);
    return rpc::Empty{};
  });
  agent.serve(kWeightsCommit, queue, [this](CommitWeights r, const rpc::CallContext&) { return commit(r); });
}

}  // namespace retort::roles

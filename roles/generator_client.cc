#include "roles/generator_client.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "models/generation/request.h"
#include "roles/weight_staging.h"

namespace retort::roles {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void check_samples(const Samples& samples, const PendingSamples& pending, int64_t vocab_rows) {
  const GenerateRequest& request = pending.request;
  const std::string hash = sequence_hash(request.prompt_ids, request.cu_seqlens, at::empty({0}, at::kInt));
  if (samples.request_id != request.request_id || samples.generator != pending.generator ||
      samples.weight_version != request.weight_version || samples.sequence_hash != hash)
    throw Error(ErrorCode::kMismatch, "samples belong to something else; they were not used")
        .with("request", samples.request_id)
        .with("expected_request", request.request_id)
        .with("weight_version", samples.weight_version)
        .with("expected_version", request.weight_version);
  const auto corrupt = [](const std::string& what) { throw Error(ErrorCode::kCorrupt, "samples: " + what); };
  const int64_t completions = request.sample_ids.numel();
  const auto is = [](const at::Tensor& t, at::ScalarType type, int64_t size) {
    return t.defined() && t.dim() == 1 && t.scalar_type() == type && t.numel() == size;
  };
  if (!is(samples.cu_seqlens, at::kInt, completions + 1) || !is(samples.finish_reasons, at::kByte, completions))
    corrupt("expected " + std::to_string(completions) + " completions");
  const at::Tensor lengths = samples.cu_seqlens.diff();
  const int64_t tokens = samples.cu_seqlens.select(0, completions).item<int64_t>();
  if (samples.cu_seqlens.select(0, 0).item<int64_t>() != 0 || (completions > 0 && lengths.min().item<int64_t>() < 0) ||
      !is(samples.token_ids, at::kInt, tokens) || !is(samples.logps, at::kFloat, tokens) ||
      !is(samples.sampling_logps, at::kFloat, tokens))
    corrupt("offsets, ids and log-probabilities do not fit together");
  if (completions > 0 && lengths.max().item<int64_t>() > request.draw.max_new_tokens)
    corrupt("a completion is longer than max_new_tokens");
  if (tokens > 0 && (samples.token_ids.min().item<int64_t>() < 0 || samples.token_ids.max().item<int64_t>() >= vocab_rows))
    corrupt("an id lies outside the vocabulary");
  if (tokens > 0 && !samples.logps.isfinite().all().item<bool>()) corrupt("a log-probability is not finite");
}

}  // namespace

GeneratorClient::GeneratorClient(rpc::Agent& agent, Options options, const models::Tokenizer& tokenizer,
                                 const models::Decoder& student)
    : agent_(agent), options_(std::move(options)), vocab_rows_(student.config().vocab_size) {
  const std::string parameters = parameters_hash(student), vocabulary = tokenizer.vocabulary_fingerprint();
  for (const std::string& peer : options_.replicas) {
    const GeneratorInfo info = agent_.call(peer, kGeneratorInfo, {}, {.timeout = options_.timeout}).get();
    if (info.vocabulary_fingerprint != vocabulary)
      throw Error(ErrorCode::kMismatch, "student and generator tokenizers differ; the generator must have the student's")
          .with("generator", peer);
    if (info.parameters != parameters)
      throw Error(ErrorCode::kMismatch,
                  "student and generator differ in the names, shapes or dtypes of their parameters, or in config values that "
                  "change the function (rope_theta, rms_norm_eps, sliding_window, ...); the generator takes over the student's "
                  "weights, so give both the same model and dtype")
          .with("generator", peer);
  }
}

PendingSamples GeneratorClient::send(GenerateRequest request) {
  PendingSamples pending{.request = std::move(request)};
  pending.generator = options_.replicas[pending.request.request_id % options_.replicas.size()];
  rpc::Promise<rpc::Empty> accepted;
  pending.accepted = accepted.future();
  const CollectRequest collect{pending.request.request_id};
  const rpc::CallOptions wait{.timeout = options_.generation_timeout};
  pending.reply = agent_.call(pending.generator, kGenerateSubmit, pending.request, {.timeout = options_.timeout})
                      .then([&agent = agent_, accepted, collect, wait, peer = pending.generator](rpc::Empty) mutable {
                        accepted.set_value({});
                        return agent.call(peer, kGenerateCollect, collect, wait);
                      });
  return pending;
}

void GeneratorClient::wait_accepted(PendingSamples& pending) {
  if (!pending.accepted.valid()) return;
  try {
    pending.accepted.get();
  } catch (const Error&) {
    pending.reply.get();  // throws the reason
    throw;
  }
}

Samples GeneratorClient::receive(PendingSamples pending, double* waited) {
  const auto start = std::chrono::steady_clock::now();
  try {
    Samples samples = pending.reply.get();
    if (waited) *waited += seconds_since(start);
    check_samples(samples, pending, vocab_rows_);
    return samples;
  } catch (const Error& error) {
    throw error.with("generator", pending.generator).with("step", pending.request.step);
  }
}

PendingPush GeneratorClient::push(const models::Decoder& decoder, uint64_t version, int64_t bucket_bytes, bool abort) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<WeightBucket> buckets = make_weight_buckets(decoder, version, bucket_bytes);
  PendingPush pending{.version = version};
  const rpc::CallOptions call{.timeout = options_.timeout};
  std::vector<std::pair<std::string, rpc::Future<rpc::Empty>>> transfers;
  for (WeightBucket& bucket : buckets) {  // the next is sealed while this one travels
    pending.checksum = seal(bucket, pending.checksum);
    for (const WeightPart& part : bucket.parts) pending.bytes += part.values.nbytes();
    for (const std::string& peer : options_.replicas)
      transfers.emplace_back(peer, agent_.call(peer, kWeightsBucket, bucket, call));
  }
  for (auto& [peer, transfer] : transfers) {
    try {
      transfer.get();
    } catch (const Error& error) {
      throw error.with("generator", peer).with("weight_version", version);
    }
  }
  pending.seconds = seconds_since(start);
  const CommitWeights commit{
      .version = version, .buckets = static_cast<int64_t>(buckets.size()), .checksum = pending.checksum, .abort = abort};
  for (const std::string& peer : options_.replicas)
    pending.replies.push_back(agent_.call(peer, kWeightsCommit, commit, {.timeout = options_.generation_timeout}));
  return pending;
}

void GeneratorClient::wait_pushed(PendingPush pending) {
  for (size_t i = 0; i < pending.replies.size(); ++i) {
    const std::string& peer = options_.replicas[i];
    try {
      const CommitReply reply = pending.replies[i].get();
      if (reply.version != pending.version || reply.checksum != pending.checksum)
        throw Error(ErrorCode::kMismatch, "the generator took over other weights than were sent")
            .with("version", reply.version)
            .with("sent_version", pending.version);
    } catch (const Error& error) {
      throw error.with("generator", peer).with("weight_version", pending.version);
    }
  }
}

}  // namespace retort::roles

#include "roles/teacher/server.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include "base/error.h"
#include "models/checkpoint.h"

namespace retort::roles {
Teacher::Teacher(std::string name, models::Decoder decoder, models::Tokenizer tokenizer,
                 Replica replica)
    : name_(std::move(name)),
      decoder_(std::move(decoder)),
      tokenizer_(std::move(tokenizer)),
      replica_(std::move(replica)),
      shared_(replica_.held.lease),
      held_(replica_.held),
      last_plan_(std::chrono::steady_clock::now()) {
  decoder_.set_requires_grad(false);
  if (replica_.world == nullptr) return;
  const models::Placement& place = decoder_.placement();
  last_stage_ = place.stage == place.pp - 1;
  pipeline_ = std::make_unique<Pipeline>(decoder_, replica_.world->pp());
}

Teacher::Teacher(std::string name, models::Decoder decoder, models::Tokenizer tokenizer)
    : Teacher(std::move(name), std::move(decoder), std::move(tokenizer), Replica{}) {}

Teacher::~Teacher() {
  if (!puller_.joinable()) return;
  pulls_->close();
  puller_.join();
}

TeacherInfo Teacher::info(const InfoRequest& request) {
  const int64_t known = std::min(request.tokenizer_size, tokenizer_.vocab_size());
  if (request.weights_fingerprint && fingerprint_.empty())
    fingerprint_ = replica_.world == nullptr
                       ? models::weights_fingerprint(decoder_)
                       : models::weights_fingerprint(replica_.folder, decoder_.dtype(),
                                                     [this] { keep_alive(); });
  return {.name = name_,
          .weight_version = weight_version_,
          .vocab_rows = decoder_.config().vocab_size,
          .tokenizer_size = tokenizer_.vocab_size(),
          .hidden_size = decoder_.config().hidden_size,
          .dtype = models::dtype_name(decoder_.dtype()),
          .vocabulary_fingerprint = tokenizer_.vocabulary_fingerprint(known),
          .processing_fingerprint = tokenizer_.processing_fingerprint(),
          .weights_fingerprint = request.weights_fingerprint ? fingerprint_ : "",
          .tp = decoder_.placement().tp_size()};
}

HeadReply Teacher::head(const HeadRequest& request) const {
  Range own{0, 0};
  if (last_stage_)
    own = shard_of(decoder_.config().vocab_size, decoder_.placement().tp_size(),
                   decoder_.placement().tp_rank());
  if (request.begin < own.begin || request.end < request.begin || request.end > own.end)
    throw Error(ErrorCode::kInvalidArgument,
                "teacher.head: rows outside what this rank has of the head")
        .with("begin", request.begin)
        .with("end", request.end)
        .with("own_begin", own.begin)
        .with("own_end", own.end);
  const at::Tensor weight = decoder_.head_weight().detach();
  return {.weight_version = weight_version_,
          .weight = weight.narrow(0, request.begin - own.begin, request.end - request.begin).cpu()};
}

Payload Teacher::forward(const ForwardRequest& request) const {
  const models::PackedTokens packed = unpack_request(request, decoder_.config().vocab_size);
  c10::InferenceMode inference;
  ++forwards_;
  return answer(request, models::rows_at(decoder_.hidden(packed), request.positions));
}

void Teacher::label(Payload& payload, const ForwardRequest& request) const {
  payload.label.request_id = request.request_id;
  payload.label.teacher = name_;
  payload.label.weight_version = weight_version_;
  payload.label.sequence_hash =
      sequence_hash(request.input_ids, request.cu_seqlens, request.positions);
}

// `hidden_rows`: the final hidden states at the request's positions. Where the pipeline ends, and
// without autograd.
Payload Teacher::answer(const ForwardRequest& request, const at::Tensor& hidden_rows) const {
  at::Tensor targets;
  if (request.spec.kind == PayloadKind::kTargetLogProbs) targets = targets_of(request);
  const models::Head head = decoder_.head();
  Payload payload = make_payload(hidden_rows, head.weight, request.spec, targets, head.vocab);
  label(payload, request);
  ++served_;
  return payload;
}

// The first request that waits puts a job behind all requests that are queued already; that job
// computes what gathered.
Future<Payload> Teacher::wait_to_merge(ForwardRequest request, const rpc::CallContext& context) {
  models::PackedTokens tokens = unpack_request(request, decoder_.config().vocab_size);
  const bool first = waiting_.empty();
  waiting_.push_back({std::move(request), std::move(tokens), context.cancelled, {}});
  auto reply = waiting_.back().reply.future();
  if (first && !queue_->try_push([this] { compute_waiting(); })) compute_waiting();
  return reply;
}

void Teacher::compute_waiting() {
  std::vector<Waiting> waiting = std::exchange(waiting_, {});
  std::vector<Waiting> batch;
  int64_t tokens = 0;
  for (Waiting& one : waiting) {
    if (one.cancelled->load()) continue;  // its promise answers kClosed, which nobody reads
    if (!batch.empty() && tokens + one.tokens.num_tokens() > max_merged_tokens_) {
      compute_together(std::exchange(batch, {}));
      tokens = 0;
    }
    tokens += one.tokens.num_tokens();
    batch.push_back(std::move(one));
  }
  if (!batch.empty()) compute_together(std::move(batch));
}

void Teacher::compute_together(std::vector<Waiting> batch) const {
  c10::InferenceMode inference;
  try {
    std::vector<const ForwardRequest*> requests;
    std::vector<models::PackedTokens> packs;
    for (Waiting& one : batch) {
      requests.push_back(&one.request);
      packs.push_back(std::move(one.tokens));
    }
    const MergedPacks merged = merge_packs(requests, std::move(packs));
    const at::Tensor hidden = decoder_.hidden(merged.tokens);
    ++forwards_;
    for (size_t i = 0; i < batch.size(); ++i)
      batch[i].reply.set_value(answer(batch[i].request, models::rows_at(hidden, merged.rows[i])));
  } catch (...) {
    // those answered already keep their answer
    for (Waiting& one : batch)
      one.reply.set_error(std::current_exception());
  }
}

void Teacher::serve(rpc::Agent& agent, std::shared_ptr<rpc::HandlerQueue> queue, Batching batching,
                    int64_t max_merged_tokens) {
  queue_ = std::move(queue);
  batching_ = batching;
  max_merged_tokens_ = max_merged_tokens;
  if (!leads()) {
    serve_pulls(agent);
    return;
  }
  agent.serve(kTeacherInfo, queue_,
              [this](InfoRequest r, const rpc::CallContext&) { return info(r); });
  agent.serve(kTeacherHead, queue_,
              [this](HeadRequest r, const rpc::CallContext&) { return head(r); });
  agent.serve(kTeacherForward, queue_,
              [this](ForwardRequest r, const rpc::CallContext& context) -> Future<Payload> {
                if (replica_.world != nullptr || r.parts > 1) return attend(std::move(r), context);
                if (batching_ == Batching::kDynamic) return wait_to_merge(std::move(r), context);
                Promise<Payload> reply;
                reply.set_value(forward(r));
                return reply.future();
              });
}

}  // namespace retort::roles

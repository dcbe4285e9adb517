#include "roles/teacher.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include "base/error.h"
#include "models/checkpoint.h"

namespace retort::roles {
namespace {

[[noreturn]] void refuse(const std::string& what, const ForwardRequest& request) {
  throw Error(ErrorCode::kInvalidArgument, "teacher.forward: " + what)
      .with("request", request.request_id)
      .with("step", request.step);
}

void require_vector(const at::Tensor& tensor, const char* name, const ForwardRequest& request) {
  if (!tensor.defined() || tensor.dim() != 1 || tensor.scalar_type() != at::kInt)
    refuse(std::string(name) + " must be a vector of int32", request);
}

// Checks every index before the model sees it.
models::PackedTokens unpack(const ForwardRequest& request, int64_t vocab_rows) {
  require_vector(request.input_ids, "input_ids", request);
  require_vector(request.cu_seqlens, "cu_seqlens", request);
  require_vector(request.positions, "positions", request);
  const int64_t tokens = request.input_ids.numel();
  models::PackedTokens packed;
  packed.input_ids = request.input_ids.to(at::kLong);
  const at::Tensor offsets = request.cu_seqlens.to(at::kLong).contiguous();
  packed.cu_seqlens.assign(offsets.const_data_ptr<int64_t>(), offsets.const_data_ptr<int64_t>() + offsets.numel());
  if (packed.cu_seqlens.empty() || packed.cu_seqlens.front() != 0 || packed.cu_seqlens.back() != tokens)
    refuse("cu_seqlens must start at 0 and end at the number of tokens, " + std::to_string(tokens), request);
  packed.positions = at::empty({tokens}, at::kLong);
  int64_t* position = packed.positions.mutable_data_ptr<int64_t>();
  for (size_t s = 0; s + 1 < packed.cu_seqlens.size(); ++s) {
    const int64_t begin = packed.cu_seqlens[s], end = packed.cu_seqlens[s + 1];
    if (end < begin || end > tokens) refuse("cu_seqlens must not decrease", request);
    for (int64_t i = begin; i < end; ++i) position[i] = i - begin;
  }
  if (tokens > 0 && (packed.input_ids.min().item<int64_t>() < 0 || packed.input_ids.max().item<int64_t>() >= vocab_rows))
    refuse("a token id is outside the teacher's vocabulary of " + std::to_string(vocab_rows) +
               " rows; student and teacher tokenizers differ",
           request);
  if (request.positions.numel() > 0 &&
      (request.positions.min().item<int64_t>() < 0 || request.positions.max().item<int64_t>() >= tokens))
    refuse("a position lies outside the pack", request);
  return packed;
}

void validate_spec(const PayloadSpec& spec, const ForwardRequest& request) {
  if (!(spec.temperature > 0)) refuse("temperature must be > 0", request);
  if (spec.kind == PayloadKind::kTopK && spec.top_k <= 0) refuse("top_k must be > 0", request);
}

// The token after each wanted position, which must be of the same sequence.
at::Tensor targets_of(const ForwardRequest& request) {
  const at::Tensor next = request.positions.to(at::kLong) + 1;
  const at::Tensor ends = request.cu_seqlens.to(at::kLong);
  if (next.numel() > 0 && (next.max().item<int64_t>() >= request.input_ids.numel() || at::isin(next, ends).any().item<bool>()))
    refuse("a position is the last of its sequence; no token follows it", request);
  return request.input_ids.to(at::kLong).index_select(0, next);
}

}  // namespace

Teacher::Teacher(std::string name, models::Decoder decoder, models::Tokenizer tokenizer)
    : name_(std::move(name)), decoder_(std::move(decoder)), tokenizer_(std::move(tokenizer)) {
  decoder_.set_requires_grad(false);
}

TeacherInfo Teacher::info(const InfoRequest& request) const {
  const int64_t known = std::min(request.tokenizer_size, tokenizer_.vocab_size());
  if (request.weights_fingerprint && fingerprint_.empty()) fingerprint_ = models::weights_fingerprint(decoder_);
  return {.name = name_,
          .weight_version = weight_version_,
          .vocab_rows = decoder_.config().vocab_size,
          .tokenizer_size = tokenizer_.vocab_size(),
          .hidden_size = decoder_.config().hidden_size,
          .dtype = models::dtype_name(decoder_.head_weight().scalar_type()),
          .vocabulary_fingerprint = tokenizer_.vocabulary_fingerprint(known),
          .processing_fingerprint = tokenizer_.processing_fingerprint(),
          .weights_fingerprint = request.weights_fingerprint ? fingerprint_ : ""};
}

HeadReply Teacher::head(const HeadRequest& request) const {
  const at::Tensor weight = decoder_.head_weight().detach();
  if (request.begin < 0 || request.end < request.begin || request.end > weight.size(0))
    throw Error(ErrorCode::kInvalidArgument, "teacher.head: rows outside the head")
        .with("begin", request.begin)
        .with("end", request.end)
        .with("rows", weight.size(0));
  return {.weight_version = weight_version_, .weight = weight.narrow(0, request.begin, request.end - request.begin)};
}

Payload Teacher::forward(const ForwardRequest& request) const {
  validate_spec(request.spec, request);
  const models::PackedTokens packed = unpack(request, decoder_.config().vocab_size);
  c10::InferenceMode inference;
  ++forwards_;
  return answer(request, decoder_.hidden(packed).index_select(0, request.positions.to(at::kLong)));
}

// `hidden_rows`: the final hidden states at the request's positions. In inference mode.
Payload Teacher::answer(const ForwardRequest& request, const at::Tensor& hidden_rows) const {
  at::Tensor targets;
  if (request.spec.kind == PayloadKind::kTargetLogProbs) targets = targets_of(request);
  Payload payload = make_payload(hidden_rows, decoder_.head_weight(), request.spec, targets);
  payload.label.request_id = request.request_id;
  payload.label.teacher = name_;
  payload.label.weight_version = weight_version_;
  payload.label.sequence_hash = sequence_hash(request.input_ids, request.cu_seqlens, request.positions);
  ++served_;
  return payload;
}

// The first request that waits puts a job behind all requests that are queued already; that job computes what gathered.
rpc::Future<Payload> Teacher::wait_to_merge(ForwardRequest request, const rpc::CallContext& context,
                                            const std::shared_ptr<rpc::HandlerQueue>& queue) {
  validate_spec(request.spec, request);
  models::PackedTokens tokens = unpack(request, decoder_.config().vocab_size);
  const bool first = waiting_.empty();
  waiting_.push_back({std::move(request), std::move(tokens), context.cancelled, {}});
  auto reply = waiting_.back().reply.future();
  if (first && !queue->try_push([this] { compute_waiting(); })) compute_waiting();
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
    std::vector<at::Tensor> ids, token_positions, rows;
    models::PackedTokens all;
    all.cu_seqlens = {0};
    int64_t offset = 0;
    for (const Waiting& one : batch) {
      ids.push_back(one.tokens.input_ids);
      token_positions.push_back(one.tokens.positions);
      rows.push_back(one.request.positions.to(at::kLong) + offset);
      for (size_t s = 1; s < one.tokens.cu_seqlens.size(); ++s) all.cu_seqlens.push_back(offset + one.tokens.cu_seqlens[s]);
      offset += one.tokens.num_tokens();
    }
    all.input_ids = at::cat(ids);
    all.positions = at::cat(token_positions);
    const at::Tensor hidden = decoder_.hidden(all);
    ++forwards_;
    for (size_t i = 0; i < batch.size(); ++i) {
      Waiting& one = batch[i];
      one.reply.set_value(answer(one.request, hidden.index_select(0, rows[i])));
    }
  } catch (...) {
    for (Waiting& one : batch) one.reply.set_error(std::current_exception());  // those answered already keep their answer
  }
}

void Teacher::serve(rpc::Agent& agent, std::shared_ptr<rpc::HandlerQueue> queue, Batching batching, int64_t max_merged_tokens) {
  max_merged_tokens_ = max_merged_tokens;
  agent.serve(kTeacherInfo, queue, [this](InfoRequest r, const rpc::CallContext&) { return info(r); });
  agent.serve(kTeacherHead, queue, [this](HeadRequest r, const rpc::CallContext&) { return head(r); });
  if (batching == Batching::kAsSent) {
    agent.serve(kTeacherForward, queue, [this](ForwardRequest r, const rpc::CallContext&) { return forward(r); });
    return;
  }
  agent.serve(kTeacherForward, queue, [this, queue](ForwardRequest r, const rpc::CallContext& context) {
    return wait_to_merge(std::move(r), context, queue);
  });
}

}  // namespace retort::roles

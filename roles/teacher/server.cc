#include "roles/teacher/server.h"

#include <ATen/core/Tensor.h>

#include "base/error.h"
#include "models/checkpoint/checkpoint.h"
#include "roles/teacher/model_files.h"
#include "roles/teacher/requests.h"

namespace retort::roles {
namespace {

// A teacher's weights never change, so there is one version.
constexpr uint64_t kWeightVersion = 1;
// At most this many jobs are run before a waiting request is computed all the same.
constexpr int64_t kMaxJobsBefore = 256;
// When this many requests wait, one of them is computed before any further job is run.
constexpr size_t kManyRequests = 256;

}  // namespace

Teacher::Teacher(std::string name, models::Decoder decoder, models::Tokenizer tokenizer,
                 Replica replica)
    : name_(std::move(name)),
      tokenizer_(std::move(tokenizer)),
      folder_(std::move(replica.folder)),
      files_(stamp_of_model(folder_)),
      link_(replica.world),
      answers_on_device_(replica.answers_on_device),
      computer_(std::move(decoder), replica.world, replica.answers_on_device, replica.kept),
      requests_(replica.store.lease),
      store_(replica.store) {}

Teacher::Teacher(std::string name, models::Decoder decoder, models::Tokenizer tokenizer)
    : Teacher(std::move(name), std::move(decoder), std::move(tokenizer), Replica{}) {}

void Teacher::set_batching(Batching batching, int64_t max_merged_tokens) {
  max_tokens_per_forward_ = batching == Batching::kDynamic ? max_merged_tokens : 0;
}

void Teacher::serve(rpc::Agent& agent, std::shared_ptr<rpc::HandlerQueue> queue) {
  jobs_ = std::move(queue);
  if (leads())
    serve_leader(agent);
  else
    serve_other_rank(agent);
}

void Teacher::serve_leader(rpc::Agent& agent) {
  agent.serve(kTeacherInfo, jobs_,
              [this](const InfoRequest& r, const rpc::CallContext&) { return info(r); });
  agent.serve(kTeacherHead, jobs_,
              [this](const HeadRequest& r, const rpc::CallContext&) { return head(r); });
  agent.serve(kTeacherForward, jobs_,
              [this](const ForwardRequest& r, const rpc::CallContext& caller) {
                return enqueue(r, caller);
              });
}

// This rank's compute thread is taken up by waiting for the leader, so another thread answers
// calls.
void Teacher::serve_other_rank(rpc::Agent& agent) {
  pull_thread_ = std::make_unique<HandlerThread>();
  pull_thread_->use_device(agent.device());
  agent.serve(kTeacherHead, pull_thread_->queue(),
              [this](const HeadRequest& r, const rpc::CallContext&) { return head(r); });
  agent.serve(kTeacherPull, pull_thread_->queue(),
              [this](const PullRequest& r, const rpc::CallContext& caller) {
                return store_.pull(r.key, r.part, caller);
              });
}

TeacherInfo Teacher::info(const InfoRequest& request) {
  const models::Decoder& decoder = computer_.decoder();
  const int64_t known = std::min(request.tokenizer_size, tokenizer_.vocab_size());
  // No rank of a split model has all weights, so its fingerprint is read from the files. That may
  // take longer than the other ranks wait for a message, so they hear in between that the leader
  // lives.
  if (request.weights_fingerprint && fingerprint_.empty())
    fingerprint_ = link_.alone() ? models::weights_fingerprint(decoder)
                                 : models::weights_fingerprint(folder_, decoder.dtype(),
                                                               [this] { link_.keep_alive(); });

  return {.name = name_,
          .weight_version = kWeightVersion,
          .vocab_rows = decoder.config().vocab_size,
          .tokenizer_size = tokenizer_.vocab_size(),
          .hidden_size = decoder.config().hidden_size,
          .dtype = models::dtype_name(decoder.dtype()),
          .vocabulary_fingerprint = tokenizer_.vocabulary_fingerprint(known),
          .processing_fingerprint = tokenizer_.processing_fingerprint(),
          .weights_fingerprint = request.weights_fingerprint ? fingerprint_ : "",
          .files = files_,
          .tp = decoder.placement().tp_size()};
}

HeadReply Teacher::head(const HeadRequest& request) const {
  const models::Decoder& decoder = computer_.decoder();
  const models::Placement& place = decoder.placement();
  Range own{0, 0};
  if (computer_.forms_answers())
    own = shard_of(decoder.config().vocab_size, place.tp_size(), place.tp_rank());
  if (request.begin < own.begin || request.end < request.begin || request.end > own.end)
    throw Error(ErrorCode::kInvalidArgument,
                "teacher.head: rows outside what this rank has of the head")
        .with("begin", request.begin)
        .with("end", request.end)
        .with("own_begin", own.begin)
        .with("own_end", own.end);

  const at::Tensor rows = decoder.head_weight().detach().narrow(0, request.begin - own.begin,
                                                                request.end - request.begin);
  return {.weight_version = kWeightVersion,
          .weight = answers_on_device_ ? rows : rpc::host_copy(rows)};
}

Future<Payload> Teacher::enqueue(const ForwardRequest& request, const rpc::CallContext& caller) {
  check_request(request, computer_.decoder().config().vocab_size);

  const std::string key = result_key(request);
  Future<Payload> reply;
  if (has_piece(request, request.part)) {
    try {
      reply = store_.pull(key, request.part, caller);
    } catch (const Error&) {  // it was dropped
      requests_.forget(key);
      throw;
    }
  } else {
    // This rank has no piece of the part, and the caller asks those that have one. The leader
    // answers with the label alone.
    Promise<Payload> without_tensors;
    reply = without_tensors.future();
    Payload answer;
    answer.label = label_of(request);
    answer.label.part = request.part;
    answer.label.parts = request.parts;
    without_tensors.set_value(std::move(answer));
  }

  requests_.add(key, request, caller);
  return reply;
}

// Jobs that wait may be requests for the same forward pass, or for other parts of the same answer,
// so they are run first.
bool Teacher::jobs_come_first() {
  const bool jobs_wait = jobs_ != nullptr && jobs_->size() > 0;
  const bool may_wait = !requests_.empty() && requests_.size() < kManyRequests;
  if (jobs_wait && may_wait && ++jobs_before_ < kMaxJobsBefore) return true;
  jobs_before_ = 0;
  return false;
}

bool Teacher::work() {
  if (jobs_come_first()) return true;
  const RequestBatch batch = requests_.take(max_tokens_per_forward_);
  try {
    if (batch.requests.empty()) {
      link_.keep_alive();
    } else {
      link_.announce(batch);
      compute(batch);
    }
  } catch (const std::exception& error) {
    // A rank alone may fail its batch and go on. Of several, an exception leaves each at another
    // place in the collectives, so the replica ends, and whoever waits for an answer hears it
    // first.
    if (!link_.alone()) {
      fail_all(std::string("the teacher's replica ends: ") + error.what());
      throw;
    }
    fail(batch.keys, std::current_exception());
  }
  return !requests_.empty();
}

void Teacher::follow(rpc::HandlerQueue&, const std::function<void()>& report) {
  using Kind = ReplicaLink::Message::Kind;
  try {
    for (;;) {
      const ReplicaLink::Message message = link_.receive();
      if (message.kind == Kind::kStop) break;
      if (message.kind == Kind::kCompute) compute(message.batch);
      if (report) report();
    }
  } catch (const std::exception& error) {
    fail_all(std::string("the teacher's replica ends: ") + error.what());
    throw;
  }
  fail_all("the teacher stops");
}

void Teacher::stop() {
  link_.stop();
  fail_all("the teacher stops");
}

Progress Teacher::progress() const { return {requests_served(), "requests answered"}; }

std::string Teacher::summary() const {
  return std::to_string(requests_served()) + " requests answered by " + std::to_string(forwards()) +
         " forward passes";
}

void Teacher::compute(const RequestBatch& batch) {
  computer_.compute(batch.requests, [&](size_t index, Payload whole) {
    deliver(batch.keys.at(index), batch.requests[index], std::move(whole));
  });
}

void Teacher::deliver(const std::string& key, const ForwardRequest& request, Payload whole) {
  whole.label = label_of(request);
  const int64_t rank = computer_.decoder().placement().tp_rank();
  // The only part of an answer is asked of the leader before it is computed, and never later.
  const bool asked_later = !leads() || request.parts > 1;
  // Nobody asks another rank for an answer without tensors.
  if (asks_to_keep(request) && !leads()) return;

  for (int64_t part = 0; part < request.parts; ++part) {
    if (!has_piece(request, part)) continue;
    Payload piece = cut_piece(whole, request, part, pieces(), rank);
    if (asked_later)
      store_.put(key, part, std::move(piece));
    else
      store_.answer_waiting(key, part, piece);
  }
}

// Answers that went out before the error stay as they are.
void Teacher::fail(const std::vector<std::string>& keys, const std::exception_ptr& error) {
  for (const std::string& key : keys) {
    store_.fail(key, error);
    requests_.forget(key);
  }
}

// Whoever waits for an answer hears at once that none comes.
void Teacher::fail_all(const std::string& why) {
  store_.fail_all(std::make_exception_ptr(Error(ErrorCode::kPeerLost, why).with("teacher", name_)));
}

bool Teacher::has_piece(const ForwardRequest& request, int64_t part) const {
  return computer_.forms_answers() &&
         pieces().has(request, part, computer_.decoder().placement().tp_rank());
}

PieceMap Teacher::pieces() const {
  const models::Decoder& decoder = computer_.decoder();
  return {.vocab_rows = decoder.config().vocab_size, .ranks = decoder.placement().tp_size()};
}

// The label of the whole answer, to which a piece adds its part.
PayloadLabel Teacher::label_of(const ForwardRequest& request) const {
  return {.request_id = request.request_id,
          .teacher = name_,
          .weight_version = kWeightVersion,
          .sequence_hash = hash_of(request),
          .num_rows = request.positions.numel(),
          .spec = request.spec};
}

}  // namespace retort::roles

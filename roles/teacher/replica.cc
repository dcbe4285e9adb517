// What a teacher computes for several ranks at once, and together with the other ranks of its
// replica.
#include <ATen/core/Tensor.h>
#include <ATen/ops/index_select.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include "base/error.h"
#include "roles/payload/sharded.h"
#include "roles/teacher/plan.h"
#include "roles/teacher/server.h"
#include "rpc/archive.h"

namespace retort::roles {
namespace {

// Jobs that are run before a computation that waits is begun all the same.
constexpr int64_t kMostJobsBefore = 256;

}  // namespace

// A request that several ranks compute or fetch: what this rank has of the asked part comes as soon
// as it is there, if it has none an answer without tensors at once.
Future<Payload> Teacher::attend(ForwardRequest request, const rpc::CallContext& context) {
  const int64_t vocab_rows = decoder_.config().vocab_size;
  unpack_request(request, vocab_rows);
  if (request.spec.kind == PayloadKind::kTargetLogProbs)
    check_targets(targets_of(request), request.positions.numel(),
                  payload_vocab(request.spec, vocab_rows));

  const std::string key = result_key(request);
  Promise<Payload> without;
  Future<Payload> reply;
  if (last_stage_ && pieces().has(request, request.part, decoder_.placement().tp_rank())) {
    try {
      reply = held_.pull(key, request.part, context);
    } catch (const Error&) {
      shared_.forget(key);
      throw;
    }
  } else {
    Payload payload;
    label(payload, request);
    payload.label.spec = request.spec;
    payload.label.num_rows = request.positions.numel();
    payload.label.part = request.part;
    payload.label.parts = request.parts;
    reply = without.future();
    without.set_value(std::move(payload));
  }

  shared_.ask(key, request, context.cancelled);
  return reply;
}

// On every rank of the replica.
void Teacher::compute_shared(const std::vector<ForwardRequest>& requests) {
  // Not inference mode if there are collectives: their tensors are also used by threads of their
  // own.
  const c10::InferenceMode inference(replica_.world == nullptr);
  const c10::NoGradGuard no_grad;

  std::vector<const ForwardRequest*> pointers;
  std::vector<models::PackedTokens> packs;
  for (const ForwardRequest& request : requests) {
    pointers.push_back(&request);
    packs.push_back(unpack_request(request, decoder_.config().vocab_size));
  }

  // One forward pass for all of them, laid end to end.
  const MergedPacks merged = merge_packs(pointers, std::move(packs));
  const at::Tensor hidden =
      pipeline_ ? pipeline_->hidden(merged.tokens) : decoder_.hidden(merged.tokens);
  ++forwards_;
  if (!last_stage_) {
    served_ += static_cast<int64_t>(requests.size());
    return;
  }

  // What this rank has of each answer is kept until it is fetched.
  const PieceMap map = pieces();
  const int64_t rank = decoder_.placement().tp_rank();
  for (size_t i = 0; i < requests.size(); ++i) {
    const Payload whole = answer(requests[i], models::rows_at(hidden, merged.rows[i]));
    const std::string key = result_key(requests[i]);
    for (int64_t part = 0; part < requests[i].parts; ++part)
      if (map.has(requests[i], part, rank))
        held_.put(key, part, cut_piece(whole, requests[i], part, map, rank));
  }
}

void Teacher::broadcast(const TeacherPlan& plan) {
  replica_.world->mp().broadcast(rpc::to_bytes(plan), 0);
  last_plan_ = std::chrono::steady_clock::now();
}

// The other ranks wait in a broadcast, whose time is limited.
void Teacher::keep_alive() {
  if (replica_.world != nullptr &&
      std::chrono::steady_clock::now() - last_plan_ > replica_.world->options().timeout / 8)
    broadcast({});
}

// Runs what may be a collective: an error ends the replica, and whoever waits for an answer hears
// it at once.
template <class Fn>
void Teacher::as_replica(Fn&& fn) {
  try {
    fn();
  } catch (const std::exception& e) {
    if (replica_.world != nullptr)
      held_.fail_all(std::make_exception_ptr(
          Error(ErrorCode::kPeerLost, std::string("the teacher's replica ends: ") + e.what())
              .with("teacher", name_)));
    throw;
  }
}

bool Teacher::work() {
  if (!shared_.empty() && queue_->size() > 0 && ++jobs_before_ < kMostJobsBefore) return true;
  jobs_before_ = 0;
  const std::vector<ForwardRequest> requests =
      shared_.take(batching_ == Batching::kDynamic ? max_merged_tokens_ : 0);
  if (requests.empty()) {
    as_replica([&] { keep_alive(); });
    return false;
  }
  try {
    as_replica([&] {
      if (replica_.world != nullptr)
        broadcast({.kind = TeacherPlan::Kind::kCompute, .requests = requests});
      compute_shared(requests);
    });
  } catch (const std::exception&) {
    if (replica_.world != nullptr) throw;
    for (const ForwardRequest& request : requests) {
      held_.fail(result_key(request), std::current_exception());
      shared_.forget(result_key(request));
    }
  }
  return !shared_.empty();
}

void Teacher::stop() {
  if (replica_.world != nullptr) broadcast({.kind = TeacherPlan::Kind::kStop, .requests = {}});
}

void Teacher::follow(const std::function<void()>& tick) {
  as_replica([&] {
    for (;;) {
      const auto plan = rpc::from_bytes<TeacherPlan>(replica_.world->mp().broadcast("", 0));
      if (plan.kind == TeacherPlan::Kind::kStop) return;
      if (plan.kind == TeacherPlan::Kind::kCompute) compute_shared(plan.requests);
      if (tick) tick();
    }
  });
}

// This rank's compute thread waits for the leader, so that another answers.
void Teacher::serve_pulls(rpc::Agent& agent) {
  pulls_ = std::make_shared<rpc::HandlerQueue>(1024);
  agent.serve(kTeacherHead, pulls_,
              [this](HeadRequest r, const rpc::CallContext&) { return head(r); });
  agent.serve(kTeacherPull, pulls_, [this](PullRequest r, const rpc::CallContext& context) {
    return held_.pull(r.key, r.part, context);
  });
  puller_ = std::thread([pulls = pulls_] {
    while (!pulls->closed())
      if (auto job = pulls->pop(Deadline::after(std::chrono::seconds(1)))) (*job)();
  });
}

}  // namespace retort::roles

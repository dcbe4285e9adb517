#include "engines/teacher.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engines/engine_payload.h"
#include "engines/served_info.h"
#include "engines/settled.h"
#include "models/checkpoint.h"
#include "models/safetensors.h"
#include "roles/payload/parts.h"
#include "roles/teacher/requests.h"

namespace retort::engines {

using roles::ForwardRequest;
using roles::Payload;
using roles::PayloadKind;

namespace {

// An engine that is away ends its teacher: to callers that is lost, so that they ask another.
std::exception_ptr for_callers(const std::exception_ptr& error) {
  if (!is_absent(error)) return error;
  try {
    std::rethrow_exception(error);
  } catch (const Error& away) {
    return std::make_exception_ptr(Error(ErrorCode::kPeerLost,
                                         "the teacher ends: " + away.message(), away.origin(),
                                         away.context()));
  }
}

// Whether its answers are Engine::score's.
bool gets_scores(const roles::PayloadSpec& spec) {
  return spec.kind != PayloadKind::kHiddenStates && !spec.names_ids();
}

}  // namespace

// A request whose sequences are asked one by one. Threads: the engine's, once it was asked.
struct EngineTeacher::Pack {
  std::string key;
  ForwardRequest request;
  roles::PayloadLabel label;
  int64_t vocab_rows = 0;
  std::vector<Scored> scored;
  std::vector<at::Tensor> tensors;  // hidden states, or log-probabilities at named ids
  size_t open = 0;                  // questions without an answer
  bool failed = false;
  std::vector<std::function<void()>> cancel;  // what is asked
};

EngineTeacher::EngineTeacher(std::shared_ptr<Engine> engine, models::Tokenizer tokenizer,
                             Options options)
    : engine_(std::move(engine)),
      tokenizer_(std::move(tokenizer)),
      options_(std::move(options)),
      requests_(options_.store.lease),
      shared_(std::make_shared<Shared>(options_.store)) {}
EngineTeacher::~EngineTeacher() = default;

void EngineTeacher::serve(rpc::Agent& agent, std::shared_ptr<rpc::HandlerQueue> queue) {
  agent.serve(roles::kTeacherInfo, queue,
              [this](const roles::InfoRequest& r, const rpc::CallContext&) { return info(r); });
  agent.serve(roles::kTeacherHead, queue,
              [this](const roles::HeadRequest& r, const rpc::CallContext&) { return head(r); });
  agent.serve(roles::kTeacherForward, queue,
              [this](const ForwardRequest& r, const rpc::CallContext& caller) {
                return enqueue(r, caller);
              });
}

roles::TeacherInfo EngineTeacher::info(const roles::InfoRequest& request) const {
  roles::TeacherInfo info = served_info(options_.name, tokenizer_, options_.config, request);
  info.numbers = options_.numbers;
  return info;
}

roles::HeadReply EngineTeacher::head(const roles::HeadRequest& request) {
  if (options_.config.final_logit_softcapping > 0)
    throw Error(
        ErrorCode::kInvalidArgument,
        "teacher.head: the model's logits are capped (final_logit_softcapping), which a head "
        "alone does not compute; use another payload than hidden_states");
  if (!head_.defined()) {
    const models::SafetensorsReader files(options_.folder);
    // Files of a tied model may call its one table either way.
    const std::string embedding = "model.embed_tokens.weight";
    const bool tied = options_.config.tie_word_embeddings && files.contains(embedding);
    head_ = files.get(tied ? embedding : "lm_head.weight").to(at::kFloat);
  }
  if (request.begin < 0 || request.end < request.begin || request.end > head_.size(0))
    throw Error(ErrorCode::kInvalidArgument, "teacher.head: rows outside the head")
        .with("begin", request.begin)
        .with("end", request.end)
        .with("rows", head_.size(0));
  return {.weight_version = kServedVersion,
          .weight = head_.narrow(0, request.begin, request.end - request.begin)};
}

Future<Payload> EngineTeacher::enqueue(const ForwardRequest& request,
                                       const rpc::CallContext& caller) {
  roles::check_request(request, options_.config.vocab_size);
  check_payload_spec(request.spec, options_.config.vocab_size, engine_->abilities());
  if (roles::asks_to_keep(request)) return ready(Payload{});
  const std::string key = roles::result_key(request);
  Future<Payload> reply;
  try {
    reply = shared_->store.pull(key, request.part, caller);
  } catch (const Error&) {  // it was dropped
    requests_.forget(key);
    throw;
  }

  // The caller's time does not run while the engine works: that has a limit of its own.
  rpc::CallContext untimed = caller;
  untimed.clock = std::make_shared<rpc::CallClock>();
  forget_failed();
  requests_.add(key, request, untimed);
  return reply;
}

// Behind pull(): who waits before a failure hears of it, who comes later finds no request that was
// taken, for whose answer nobody would wait in vain.
void EngineTeacher::forget_failed() {
  std::vector<std::string> failed;
  {
    std::lock_guard lock(shared_->mutex);
    failed.swap(shared_->failed);
  }
  for (const std::string& key : failed)
    requests_.forget(key);
}

bool EngineTeacher::work() {
  {
    std::lock_guard lock(shared_->mutex);
    if (shared_->lost) std::rethrow_exception(shared_->lost);
  }
  cancel_unwanted();
  roles::RequestBatch batch = requests_.take(/*max_tokens=*/0);
  for (size_t i = 0; i < batch.requests.size(); ++i)
    ask(batch.keys[i], std::move(batch.requests[i]));
  return !batch.requests.empty();
}

// Whoever wants a part later finds no request that was taken, and asks anew.
void EngineTeacher::cancel_unwanted() {
  std::erase_if(asked_, [](const std::weak_ptr<Pack>& pack) { return pack.expired(); });
  for (const std::weak_ptr<Pack>& asked : asked_) {
    const std::shared_ptr<Pack> pack = asked.lock();
    if (!pack || shared_->store.is_wanted(pack->key)) continue;
    {
      std::lock_guard lock(shared_->mutex);
      if (pack->open == 0) continue;  // its parts are kept for who asks
    }
    fail(*shared_, *pack,
         std::make_exception_ptr(Error(ErrorCode::kCancelled, "nobody waits for the answer")
                                     .with("request", pack->key)));
  }
}

void EngineTeacher::ask(const std::string& key, ForwardRequest request) {
  std::vector<ScoreRequest> questions = questions_of(request, options_.config.vocab_size);

  auto pack = std::make_shared<Pack>();
  pack->key = key;
  pack->vocab_rows = options_.config.vocab_size;
  pack->open = questions.size();
  const bool scores = gets_scores(request.spec);
  pack->scored.resize(scores ? questions.size() : 0);
  pack->tensors.resize(scores ? 0 : questions.size());
  pack->label = {.request_id = request.request_id,
                 .teacher = options_.name,
                 .weight_version = kServedVersion,
                 .sequence_hash = roles::hash_of(request),
                 .num_rows = request.positions.numel(),
                 .spec = request.spec};
  pack->request = std::move(request);
  if (questions.empty()) return deliver(*shared_, *pack);
  asked_.push_back(pack);
  ask_each(pack, std::move(questions));
}

void EngineTeacher::ask_each(const std::shared_ptr<Pack>& pack,
                             std::vector<ScoreRequest> questions) {
  // The last answer delivers the pack; the first error is that of the whole. Callers are answered
  // without the lock.
  const auto listen = [&](auto future, auto& answers, size_t i) {
    {
      std::lock_guard lock(shared_->mutex);
      pack->cancel.push_back(future.canceller());
    }
    future.on_outcome([shared = shared_, pack, &answers, i](auto outcome) {
      --shared->open;
      if (outcome.error) return fail(*shared, *pack, outcome.error);
      {
        std::lock_guard lock(shared->mutex);
        if (pack->failed) return;
        answers[i] = std::move(*outcome.value);
        if (--pack->open > 0) return;
      }
      deliver(*shared, *pack);
    });
  };
  const auto failed = [&] {
    std::lock_guard lock(shared_->mutex);
    return pack->failed;
  };
  const roles::PayloadSpec& spec = pack->request.spec;
  const bool named = spec.names_ids();
  const at::Tensor ids =
      named ? named_ids(spec, pack->request.ids, pack->vocab_rows) : at::Tensor();
  int64_t row = 0;
  for (size_t i = 0; i < questions.size() && !failed(); ++i) {
    const Deadline deadline = deadline_behind(shared_->open++, options_.timeout);
    const auto rows = static_cast<int64_t>(questions[i].positions.size());
    if (named)
      listen(engine_->log_probs_at(std::move(questions[i]), ids.narrow(0, row, rows), deadline),
             pack->tensors, i);
    else if (spec.kind == PayloadKind::kHiddenStates)
      listen(engine_->hidden_states(std::move(questions[i]), deadline), pack->tensors, i);
    else
      listen(engine_->score(std::move(questions[i]), deadline), pack->scored, i);
    row += rows;
  }
}

void EngineTeacher::fail(Shared& shared, Pack& pack, const std::exception_ptr& error) {
  std::vector<std::function<void()>> others;
  {
    std::lock_guard lock(shared.mutex);
    if (std::exchange(pack.failed, true)) return;
    others.swap(pack.cancel);
    if (is_absent(error)) shared.lost = error;
    shared.failed.push_back(pack.key);
  }
  shared.store.fail(pack.key, for_callers(error));
  for (const auto& cancel : others)
    cancel();
}

void EngineTeacher::deliver(Shared& shared, Pack& pack) {
  const roles::PayloadSpec& spec = pack.request.spec;
  try {
    Payload whole = gets_scores(spec)  ? payload_of(spec, pack.scored, pack.vocab_rows)
                    : spec.names_ids() ? payload_of_named(spec, pack.tensors, pack.vocab_rows)
                                       : payload_of_hidden(pack.tensors);
    whole.label = pack.label;
    const roles::PieceMap map{.vocab_rows = pack.vocab_rows, .ranks = 1};
    for (int64_t part = 0; part < pack.request.parts; ++part) {
      Payload piece = roles::cut_piece(whole, pack.request, part, map, 0);
      // The only part was asked for before it was computed, and is never asked for later.
      if (pack.request.parts > 1)
        shared.store.put(pack.key, part, std::move(piece));
      else
        shared.store.answer_waiting(pack.key, part, piece);
    }
    ++shared.served;
  } catch (const std::exception&) {
    fail(shared, pack, std::current_exception());
  }
}

void EngineTeacher::stop() {
  shared_->store.fail_all(std::make_exception_ptr(
      Error(ErrorCode::kPeerLost, "the teacher stops").with("teacher", options_.name)));
}

}  // namespace retort::engines

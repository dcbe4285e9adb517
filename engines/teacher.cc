#include "engines/teacher.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engines/engine_payload.h"
#include "engines/served_info.h"
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

}  // namespace

// A request whose sequences are asked one by one. Threads: the engine's, once it was asked.
struct EngineTeacher::Pack {
  std::string key;
  ForwardRequest request;
  roles::PayloadLabel label;
  int64_t vocab_rows = 0;
  std::vector<Scored> scored;
  std::vector<at::Tensor> hidden;
  size_t open = 0;  // questions without an answer
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
  return served_info(options_.name, tokenizer_, options_.config, request);
}

roles::HeadReply EngineTeacher::head(const roles::HeadRequest& request) {
  if (options_.config.final_logit_softcapping > 0)
    throw Error(
        ErrorCode::kInvalidArgument,
        "teacher.head: the model's logits are capped (final_logit_softcapping), which a head "
        "alone does not compute; use another payload than hidden_states");
  if (!head_.defined()) {
    const models::SafetensorsReader files(options_.folder);
    head_ = files
                .get(options_.config.tie_word_embeddings ? "model.embed_tokens.weight"
                                                         : "lm_head.weight")
                .to(at::kFloat);
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
  roles::RequestBatch batch = requests_.take(/*max_tokens=*/0);
  for (size_t i = 0; i < batch.requests.size(); ++i)
    ask(batch.keys[i], std::move(batch.requests[i]));
  return !batch.requests.empty();
}

void EngineTeacher::ask(const std::string& key, ForwardRequest request) {
  const bool hidden = request.spec.kind == PayloadKind::kHiddenStates;
  std::vector<ScoreRequest> questions = questions_of(request, options_.config.vocab_size);

  auto pack = std::make_shared<Pack>();
  pack->key = key;
  pack->vocab_rows = options_.config.vocab_size;
  pack->open = questions.size();
  pack->scored.resize(hidden ? 0 : questions.size());
  pack->hidden.resize(hidden ? questions.size() : 0);
  pack->label = {.request_id = request.request_id,
                 .teacher = options_.name,
                 .weight_version = kServedVersion,
                 .sequence_hash =
                     roles::sequence_hash(request.input_ids, request.cu_seqlens, request.positions),
                 .num_rows = request.positions.numel(),
                 .spec = request.spec};
  pack->request = std::move(request);
  if (questions.empty()) return deliver(*shared_, *pack);

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
  for (size_t i = 0; i < questions.size() && !failed(); ++i) {
    const Deadline deadline = deadline_behind(shared_->open++, options_.timeout);
    if (hidden)
      listen(engine_->hidden_states(std::move(questions[i]), deadline), pack->hidden, i);
    else
      listen(engine_->score(std::move(questions[i]), deadline), pack->scored, i);
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
    Payload whole = spec.kind == PayloadKind::kHiddenStates
                        ? payload_of_hidden(pack.hidden)
                        : payload_of(spec, pack.scored, pack.vocab_rows);
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

#include "engines/served/teacher.h"

#include <ATen/core/Tensor.h>

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/future_combinators.h"
#include "engines/served/engine_payload.h"
#include "engines/served/served_info.h"
#include "models/checkpoint/checkpoint.h"
#include "models/safetensors/safetensors.h"
#include "roles/teacher/parts.h"
#include "roles/teacher/requests.h"

namespace retort::engines {

using roles::ForwardRequest;
using roles::Payload;
using roles::PayloadKind;

namespace {

// An engine that is away ends its teacher. Callers get kPeerLost for it, whatever the engine's own
// error is, because that code makes them ask another replica.
std::exception_ptr for_callers(const std::exception_ptr& lost) {
  try {
    std::rethrow_exception(lost);
  } catch (const Error& away) {
    return std::make_exception_ptr(Error(ErrorCode::kPeerLost,
                                         "the teacher ends: " + away.message(), away.origin(),
                                         away.context()));
  } catch (const std::exception& other) {
    return std::make_exception_ptr(
        Error(ErrorCode::kPeerLost, std::string("the teacher ends: ") + other.what()));
  }
}

// Names the request in its error, so that a reader of the log finds the one that failed.
std::exception_ptr of_request(const std::exception_ptr& failure, const std::string& key) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return std::make_exception_ptr(error.with("request", key));
  } catch (...) {
    return failure;
  }
}

}  // namespace

EngineTeacher::EngineTeacher(std::shared_ptr<Engine> engine, models::Tokenizer tokenizer,
                             Options options)
    : engine_(std::move(engine)),
      tokenizer_(std::move(tokenizer)),
      options_(std::move(options)),
      requests_(options_.store.lease),
      packs_(options_.timeout, for_callers),
      shared_(std::make_shared<Shared>(options_.store, options_.config.vocab_size)) {}

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
  // The head is read when it is asked for first: only the payload hidden_states needs it.
  if (!head_.defined()) {
    const models::SafetensorsReader files(options_.folder);
    // The files of a tied model have one table, which may stand there under either name.
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
  if (roles::asks_to_keep(request)) return ready_future(Payload{});
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

// Called behind pull(), and the order matters. A caller that pulled before the failure gets its
// error from the store. A caller that pulls later must not find the failed request among those
// taken, or it would wait for an answer that never comes.
void EngineTeacher::forget_failed() {
  std::vector<std::string> failed;
  {
    std::lock_guard lock(shared_->mutex);
    failed.swap(shared_->failed);
  }
  for (const std::string& key : failed)
    requests_.forget(key);
}

// look() comes first: it throws if the engine is gone, and cancels requests that nobody waits for.
// A caller that wants a part of a cancelled request later asks for it anew.
bool EngineTeacher::work() {
  packs_.look();
  roles::RequestBatch batch = requests_.take(/*max_tokens=*/0);
  for (size_t i = 0; i < batch.requests.size(); ++i)
    ask(batch.keys[i], std::move(batch.requests[i]));
  return !batch.requests.empty();
}

void EngineTeacher::ask(const std::string& key, ForwardRequest request) {
  std::vector<ScoreRequest> questions = questions_of(request, options_.config.vocab_size);
  const roles::PayloadLabel label{.request_id = request.request_id,
                                  .teacher = options_.name,
                                  .weight_version = kServedVersion,
                                  .sequence_hash = roles::hash_of(request),
                                  .num_rows = request.positions.numel(),
                                  .spec = request.spec};

  // An engine that was lost since look() takes no questions: the next work() ends the teacher.
  Future<std::vector<Answer>> answers =
      try_future([&] { return ask_each(key, request, std::move(questions)); });
  // This runs on the engine's thread, and the teacher may be gone by then: it touches what is
  // shared alone.
  answers.on_outcome([shared = shared_, key, request = std::move(request),
                      label](Outcome<std::vector<Answer>> outcome) {
    if (outcome.error) return shared->fail(key, of_request(outcome.error, key));
    try {
      Payload whole =
          payload_of_answers(request.spec, std::move(*outcome.value), shared->vocab_rows);
      whole.label = label;
      shared->deliver(key, request, whole);
    } catch (const std::exception&) {
      shared->fail(key, std::current_exception());
    }
  });
}

Future<std::vector<EngineTeacher::Answer>> EngineTeacher::ask_each(
    const std::string& key, const ForwardRequest& request, std::vector<ScoreRequest> questions) {
  const auto of_scored = [](Scored scored) { return Answer{.scored = std::move(scored)}; };
  const auto of_tensor = [](at::Tensor tensor) { return Answer{.tensor = std::move(tensor)}; };
  const roles::PayloadSpec& spec = request.spec;
  at::Tensor ids;
  if (spec.names_ids()) ids = named_ids(spec, request.ids, options_.config.vocab_size);

  // packs_.ask() asks for question 0, 1, ... before it returns, so that a counter tells which rows
  // belong to a question.
  int64_t next_row = 0;  // of the request, whose rows are those of the questions in their order
  const auto ask = [&](size_t i, Deadline deadline) -> Future<Answer> {
    ScoreRequest& question = questions[i];
    const auto rows = static_cast<int64_t>(question.positions.size());
    const int64_t row = std::exchange(next_row, next_row + rows);
    if (spec.names_ids())
      return engine_->log_probs_at(std::move(question), ids.narrow(0, row, rows), deadline)
          .then(of_tensor);
    if (spec.kind == PayloadKind::kHiddenStates)
      return engine_->hidden_states(std::move(question), deadline).then(of_tensor);
    return engine_->score(std::move(question), deadline).then(of_scored);
  };
  return packs_.ask(
      questions.size(), [shared = shared_, key] { return shared->store.is_wanted(key); }, ask);
}

Payload EngineTeacher::payload_of_answers(const roles::PayloadSpec& spec,
                                          std::vector<Answer> answers, int64_t vocab_rows) {
  std::vector<Scored> scored;
  std::vector<at::Tensor> tensors;
  const bool scores = spec.kind != PayloadKind::kHiddenStates && !spec.names_ids();
  for (Answer& answer : answers) {
    if (scores)
      scored.push_back(std::move(answer.scored));
    else
      tensors.push_back(std::move(answer.tensor));
  }
  if (scores) return payload_of(spec, scored, vocab_rows);
  if (spec.names_ids()) return payload_of_named(spec, tensors, vocab_rows);
  return payload_of_hidden(tensors);
}

void EngineTeacher::Shared::fail(const std::string& key, const std::exception_ptr& error) {
  {
    const std::lock_guard lock(mutex);
    failed.push_back(key);
  }
  store.fail(key, error);
}

void EngineTeacher::Shared::deliver(const std::string& key, const ForwardRequest& request,
                                    const Payload& whole) {
  const roles::PieceMap map{.vocab_rows = vocab_rows, .ranks = 1};
  for (int64_t part = 0; part < request.parts; ++part) {
    Payload piece = roles::cut_piece(whole, request, part, map, 0);
    // The only part was asked for before it was computed, and is never asked for later.
    if (request.parts > 1)
      store.put(key, part, std::move(piece));
    else
      store.answer_waiting(key, part, piece);
  }
  ++served;
}

void EngineTeacher::stop() {
  shared_->store.fail_all(std::make_exception_ptr(
      Error(ErrorCode::kPeerLost, "the teacher stops").with("teacher", options_.name)));
}

}  // namespace retort::engines

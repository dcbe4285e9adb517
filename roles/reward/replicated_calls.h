// Requests to the replicas of a frozen role that answers each by itself.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/future.h"
#include "roles/teacher/frozen_replicas.h"
#include "rpc/agent.h"
#include "rpc/method.h"

namespace retort::roles {

// Questions go round among all replicas, all of a batch at once (as far as rpc.max_inflight_calls
// goes); those of a lost replica go to the next one that lives, or wait for one that comes back.
//
// Question has a request_id; check_answer(question, answer) throws for an answer that cannot be.
// Threads: one at a time, but for stop().
template <class Question, class Answer>
class ReplicatedCalls {
 public:
  // Shakes hands with every replica. `student`: as FrozenReplicas.
  ReplicatedCalls(rpc::Agent& agent, FrozenReplicas::Options options,
                  const models::Tokenizer* student, rpc::Method<Question, Answer> method)
      : agent_(agent),
        timeout_(options.timeout),
        method_(method),
        replicas_(agent, std::move(options), student) {}

  // The answers, in order. Errors: the role's own; kPeerLost when no replica is left; those of
  // check_answer.
  std::vector<Answer> ask(std::vector<Question> questions) {
    std::vector<Pending> open;
    open.reserve(questions.size());
    for (Question& question : questions)
      open.push_back(begin(std::move(question)));

    // All questions are under way before the first answer is waited for. If one fails for good the
    // others are of no use, and are cancelled.
    std::vector<Answer> answers;
    try {
      for (Pending& pending : open)
        answers.push_back(receive(pending));
    } catch (...) {
      for (Pending& pending : open)
        if (pending.answer.valid()) pending.answer.cancel();
      throw;
    }
    return answers;
  }

  // Ends an ask() that waits, and all later ones, with kCancelled. Any thread.
  void stop() {
    replicas_.stop();
    std::function<void()> cancel;
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
      cancel = cancel_;
    }
    if (cancel) cancel();
  }

 private:
  struct Pending {
    Question question;
    FrozenReplicas::Sent sent;
    Future<Answer> answer;
  };

  Pending begin(Question question) {
    Pending pending{.question = std::move(question), .sent = {}, .answer = {}};
    pending.question.request_id = ++last_request_;
    const size_t own = last_request_ % replicas_.size();
    if (const auto found = replicas_.choose(own)) {
      send(pending, *found);
      return pending;
    }

    // No replica can be asked now. The call fails at once, and receive() waits for a replica as it
    // does after any loss.
    pending.sent = {.replica = own, .epoch = replicas_.epoch(own)};
    Promise<Answer> lost;
    pending.answer = lost.future();
    lost.set_error(std::make_exception_ptr(replicas_.none_now()));
    return pending;
  }

  void send(Pending& pending, size_t replica) {
    pending.sent.replica = replica;
    pending.sent.epoch = replicas_.epoch(replica);
    pending.answer =
        agent_.call(replicas_[replica].leader, method_, pending.question, {.timeout = timeout_});
  }

  Answer receive(Pending& pending) {
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        // One lock covers the look and the note: a stop() between the two would cancel the answer
        // before, and this one would be waited for.
        if (stopped_) throw Error(ErrorCode::kCancelled, "nobody waits for the answers any more");
        cancel_ = pending.answer.canceller();
      }
      try {
        Answer answer = pending.answer.get();
        check_answer(pending.question, answer);
        return answer;
      } catch (const Error& error) {
        send(pending, replicas_.next(error, pending.sent, pending.question.request_id));
      }
    }
  }

  rpc::Agent& agent_;
  const std::chrono::milliseconds timeout_;
  const rpc::Method<Question, Answer> method_;
  FrozenReplicas replicas_;
  uint64_t last_request_ = 0;
  std::mutex mutex_;  // of what follows
  bool stopped_ = false;
  std::function<void()> cancel_;  // the answer that is waited for
};

}  // namespace retort::roles

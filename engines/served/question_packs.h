// Requests of several questions each, which an engine is asked one by one, all of them at once as
// far as it goes.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/future.h"
#include "base/future_combinators.h"
#include "base/units.h"
#include "engines/contract/engine.h"

namespace retort::engines {

// Errors: the first error of a question is that of its request, whose other questions are
//   cancelled. So are the questions of a request that nobody waits for, when look() finds it. An
//   engine that is not there any more ends the role: whoever waits and whoever asks later gets
//   kPeerLost and asks another replica, look() throws.
// Threads: any; answers are completed on the engine's thread.
template <class Answer>
class QuestionPacks {
 public:
  // The kPeerLost that callers get when `lost` has ended the engine.
  using ForCallers = std::function<std::exception_ptr(const std::exception_ptr& lost)>;

  // `timeout`: of one question, beside the time of those before it. `for_callers`: runs where an
  // answer arrives.
  QuestionPacks(Duration timeout, ForCallers for_callers) : timeout_(timeout) {
    shared_->for_callers = std::move(for_callers);
  }
  // `name`: of the role's process, "scorer/0" or "judge/0".
  QuestionPacks(const std::string& name, Duration timeout)
      : QuestionPacks(timeout, [name](const std::exception_ptr& lost) {
          return std::make_exception_ptr(
              Error(ErrorCode::kPeerLost, "the role ends: " + message_of(lost)).with("role", name));
        }) {}

  // Asks question 0 to count - 1 by `ask(i, deadline)`; their answers, in order. `wanted`: whether
  // anybody waits for them still; any thread calls it.
  Future<std::vector<Answer>> ask(size_t count, std::function<bool()> wanted,
                                  const std::function<Future<Answer>(size_t, Deadline)>& ask) {
    auto pack = std::make_shared<Pack>();
    pack->wanted = std::move(wanted);
    Future<std::vector<Answer>> reply = pack->promise.future();
    pack->open = count;
    pack->answers.resize(count);
    if (count == 0) {
      pack->promise.set_value({});
      return reply;
    }
    shared_->begin(pack);
    for (size_t i = 0; i < count && !shared_->has_failed(*pack); ++i) {
      const Deadline deadline = deadline_behind(shared_->open++, timeout_);
      // A question that cannot even be asked fails like any other, and the rest of its request is
      // cancelled.
      listen(pack, i, try_future([&] { return ask(i, deadline); }));
    }
    return reply;
  }

  // Now and then: cancels what nobody waits for any more. Throws what ended the engine, if it has
  // ended.
  void look() const {
    std::list<std::shared_ptr<Pack>> open;
    {
      const std::lock_guard lock(shared_->mutex);
      if (shared_->lost) std::rethrow_exception(shared_->lost);
      open = shared_->packs;
    }
    for (const auto& pack : open)
      if (!pack->wanted())
        shared_->fail(pack, std::make_exception_ptr(
                                Error(ErrorCode::kCancelled, "nobody waits for the answer")));
  }

  // Whoever waits hears that nothing comes, whoever asks later too.
  void stop() {
    const std::string why = "the role stops";
    std::list<std::shared_ptr<Pack>> open;
    {
      const std::lock_guard lock(shared_->mutex);
      open = shared_->packs;
      if (!shared_->lost) shared_->lost = std::make_exception_ptr(Error(ErrorCode::kClosed, why));
    }
    for (const auto& pack : open)
      shared_->fail(pack, shared_->for_callers(std::make_exception_ptr(std::runtime_error(why))));
  }

  // Questions whose whole request was answered.
  int64_t answered() const { return shared_->answered; }

 private:
  struct Pack {
    std::function<bool()> wanted;
    Promise<std::vector<Answer>> promise;
    std::vector<Answer> answers;
    size_t open = 0;  // questions without an answer
    bool failed = false;
    std::vector<std::function<void()>> cancel;  // what is asked
  };

  // The engine's thread needs this, so it outlives the role while a question is open.
  struct Shared {
    ForCallers for_callers;
    std::atomic<int64_t> answered{0};
    std::atomic<int64_t> open{0};  // questions without an answer
    std::mutex mutex;              // of what follows, and of packs
    std::exception_ptr lost;       // the engine is not there any more
    std::list<std::shared_ptr<Pack>> packs;

    void begin(const std::shared_ptr<Pack>& pack) {
      const std::lock_guard lock(mutex);
      if (lost) std::rethrow_exception(for_callers(lost));
      packs.push_back(pack);
    }

    bool has_failed(const Pack& pack) {
      const std::lock_guard lock(mutex);
      return pack.failed;
    }

    // The last answer completes the pack. Callers are answered without the lock.
    void take(const std::shared_ptr<Pack>& pack, size_t place, Answer answer) {
      {
        const std::lock_guard lock(mutex);
        if (pack->failed) return;
        pack->answers[place] = std::move(answer);
        if (--pack->open > 0) return;
        packs.remove(pack);
      }
      answered += static_cast<int64_t>(pack->answers.size());
      pack->promise.set_value(std::move(pack->answers));
    }

    // The first error is that of the whole.
    void fail(const std::shared_ptr<Pack>& pack, std::exception_ptr error) {
      std::vector<std::function<void()>> others;
      {
        const std::lock_guard lock(mutex);
        if (std::exchange(pack->failed, true)) return;
        others.swap(pack->cancel);
        packs.remove(pack);
        if (is_absent(error)) {
          lost = error;
          error = for_callers(error);
        }
      }
      // Callers and cancellers run without the lock: a question that ends as soon as it is
      // cancelled comes back to fail() on this thread.
      pack->promise.set_error(std::move(error));
      for (const auto& cancel : others)
        cancel();
    }
  };

  void listen(const std::shared_ptr<Pack>& pack, size_t place, Future<Answer> answer) {
    // The request may have failed while this question was being asked. Then fail() has taken the
    // cancellers already, and this one is called here.
    bool wanted = true;
    {
      const std::lock_guard lock(shared_->mutex);
      wanted = !pack->failed;
      if (wanted) pack->cancel.push_back(answer.canceller());
    }
    if (!wanted) answer.canceller()();
    answer.on_outcome([shared = shared_, pack, place](Outcome<Answer> outcome) {
      --shared->open;
      if (outcome.error)
        shared->fail(pack, outcome.error);
      else
        shared->take(pack, place, std::move(*outcome.value));
    });
  }

  Duration timeout_;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace retort::engines

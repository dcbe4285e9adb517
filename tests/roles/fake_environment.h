// An environment that does what a test says, and the role that serves it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "roles/environment/environment.h"
#include "roles/environment/server.h"
#include "rpc/agent.h"

namespace retort::roles {

using namespace std::chrono_literals;

// Answers at once, with its name and its number of the episode; a turn "hang" when it is released,
// a turn "refuse" with kInvalidArgument. The reward is the number of turns, and none after a turn
// "mad". Threads: any.
class FakeEnvironment final : public Environment {
 public:
  explicit FakeEnvironment(std::string name, int64_t episodes = 4, bool user_turns = false)
      : name_(std::move(name)), episodes_(episodes), user_turns_(user_turns) {}

  EnvironmentInfo info() override {
    return {.name = "fake", .user_turns = user_turns_, .episodes = episodes_};
  }
  Future<OpenedEpisode> open(OpenEpisode request) override {
    if (request.row == "hang")
      return held<OpenedEpisode>([this, request] { return begun(request); });
    return at_once<OpenedEpisode>([&] { return begun(request); });
  }
  Future<EpisodeAnswer> step(EpisodeTurn turn) override {
    if (turn.text == "hang") return held<EpisodeAnswer>([this, turn] { return answer(turn); });
    return at_once<EpisodeAnswer>([&] { return answer(turn); });
  }
  Future<ClosedEpisode> close(CloseEpisode request) override {
    return at_once<ClosedEpisode>([&] {
      const std::lock_guard lock(mutex_);
      const double reward = open_.at(request.episode);
      open_.erase(request.episode);
      return ClosedEpisode{.reward = reward, .metrics = "{}"};
    });
  }
  void stop() override {
    set_error(ErrorCode::kCancelled);
    release();
  }

  // What hangs goes on.
  void release() {
    std::vector<std::function<void()>> held;
    {
      const std::lock_guard lock(mutex_);
      held.swap(held_);
    }
    for (const auto& go_on : held)
      go_on();
  }
  size_t num_held() {
    const std::lock_guard lock(mutex_);
    return held_.size();
  }
  // Of each answer from now on; none: there are answers.
  void set_error(std::optional<ErrorCode> code) {
    const std::lock_guard lock(mutex_);
    error_ = code;
  }
  // Our numbers of those that are not closed.
  std::vector<uint64_t> open_episodes() {
    const std::lock_guard lock(mutex_);
    std::vector<uint64_t> numbers;
    for (const auto& [number, reward] : open_)
      numbers.push_back(number);
    return numbers;
  }

 private:
  OpenedEpisode begun(const OpenEpisode& request) {
    const std::lock_guard lock(mutex_);
    open_[request.episode] = 0;
    return {.tools = "[]", .messages = said(request.episode, std::to_string(request.seed))};
  }
  EpisodeAnswer answer(const EpisodeTurn& turn) {
    const std::lock_guard lock(mutex_);
    if (turn.text == "refuse") {
      open_.erase(turn.episode);
      throw Error(ErrorCode::kInvalidArgument, "this is no move");
    }
    if (!open_.contains(turn.episode))
      throw Error(ErrorCode::kCancelled, "the episode was closed meanwhile");
    double& reward = open_.at(turn.episode);
    reward = turn.text == "mad" ? std::numeric_limits<double>::quiet_NaN() : reward + 1;
    return {.messages = said(turn.episode, turn.text), .done = turn.turn == 2};
  }
  std::string said(uint64_t episode, const std::string& text) const {
    return "[\"" + name_ + " " + std::to_string(episode) + " " + text + "\"]";
  }

  template <class Answer>
  void finish(Promise<Answer> promise, const std::function<Answer()>& what) {
    try {
      {
        const std::lock_guard lock(mutex_);
        if (error_) throw Error(*error_, "the fake environment fails");
      }
      promise.set_value(what());
    } catch (...) {
      promise.set_error(std::current_exception());
    }
  }
  template <class Answer>
  Future<Answer> at_once(const std::function<Answer()>& what) {
    Promise<Answer> promise;
    Future<Answer> future = promise.future();
    finish(std::move(promise), what);
    return future;
  }
  template <class Answer>
  Future<Answer> held(std::function<Answer()> what) {
    Promise<Answer> promise;
    Future<Answer> future = promise.future();
    const std::lock_guard lock(mutex_);
    held_.emplace_back([this, promise, what = std::move(what)] { finish(promise, what); });
    return future;
  }

  const std::string name_;
  const int64_t episodes_;
  const bool user_turns_;
  std::mutex mutex_;
  std::optional<ErrorCode> error_;
  std::map<uint64_t, double> open_;
  std::vector<std::function<void()>> held_;
};

// A role of one fake environment at work on a thread of its own. What ends its work closes its
// agent, as the end of a process would.
class ServedEnvironment {
 public:
  explicit ServedEnvironment(const std::string& name, int64_t episodes = 4, bool user_turns = false)
      : fake(std::make_shared<FakeEnvironment>(name, episodes, user_turns)),
        server(name, fake),
        agent(rpc::Agent::Options{.name = name, .secret = "s"}) {
    server.serve(agent, queue);
    thread_ = std::thread([this] {
      try {
        server.lead(*queue, [this] { return stop_.load(); });
      } catch (const Error& error) {
        {
          const std::lock_guard lock(mutex_);
          failure_ = error;
        }
        queue->close();
        agent.close();
      }
    });
  }
  ~ServedEnvironment() {
    stop_ = true;
    thread_.join();
    queue->close();
  }

  // What ended its work.
  std::optional<Error> failure() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

  const std::shared_ptr<FakeEnvironment> fake;
  EnvironmentServer server;
  const std::shared_ptr<rpc::HandlerQueue> queue = std::make_shared<rpc::HandlerQueue>(256);
  rpc::Agent agent;

 private:
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::optional<Error> failure_;
  std::thread thread_;
};

}  // namespace retort::roles

// A generator's backend whose completions are episodes: an engine draws the model's turns, an
// environment answers them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "base/future.h"
#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"
#include "roles/environment/environment.h"
#include "roles/episodes/episode.h"
#include "roles/generator/sample_backend.h"

namespace retort::roles {

// Decorates any backend. Requests without episodes go through it as they are.
//
//   submit ---> an Episode for each completion
//   step         open            ---> environment     } answers come by the inbox, on
//                a turn's prompt ---> inner backend   } threads of the environment
//                the model's turn <-- inner backend
//                step, close     ---> environment
//   finished <-- the whole episode, once it is closed
//
// What an episode waits for: its environment, `timeout` for a step or a close and `episode_timeout`
//   for all of them, of an open too; room at the environment (EnvironmentInfo::episodes); and the
//   engine, which has deadlines of its own. An environment that fails an episode, or is late, loses
//   it: it begins anew with the same seed, after a pause that grows, and after `restarts` of these
//   it ends without a reward (Episode::take); at once where the environment refuses to open or to
//   close it in words of its own, which it would do again.
// Turns: each is a request of its own to the inner backend, with all tokens so far as its prompt
//   and the sample's id, so that it draws what the sample would draw at that place; the engine
//   finds what it computed before in its blocks. The first turns of a prompt's episodes, which
//   begin alike, are one request.
// Bits: those of the inner backend, of environments that answer alike.
// Weights: as every backend, so that a commit waits for whole episodes; what it gives up is closed
//   at the environment.
// Errors: of a turn that the inner backend refuses, or of a row that makes no prompt: of the whole
//   request. Others as SampleBackend.
// Ranks: of a replica of several, the first one's; the others have the inner backend alone.
// Threads: compute, as SampleBackend. The environment's bring answers.
class EpisodeBackend final : public SampleBackend {
 public:
  // For how long step() waits where there is nothing to draw.
  static constexpr std::chrono::milliseconds kStepWait{20};
  // An episode for which the environment had no room is opened again after this.
  static constexpr std::chrono::milliseconds kRoomWait{100};
  // For so long an episode that is open waits for others of its prompt, to begin with them.
  static constexpr std::chrono::milliseconds kGroupWait{200};

  // The environment is asked what it is with the first request for episodes. kInvalidArgument for
  // options, and for a template whose turns cannot be joined (TurnSuffix).
  EpisodeBackend(std::unique_ptr<SampleBackend> inner, std::shared_ptr<Environment> environment,
                 models::ChatTemplate chat, models::Tokenizer tokenizer, EpisodeOptions options);
  ~EpisodeBackend() override;

  GeneratorInfo info() const override { return inner_->info(); }
  uint64_t weight_version() const override { return inner_->weight_version(); }

  // kUnavailable when the environment is not ready in its time.
  uint64_t submit(const GenerateRequest& request) override;
  bool step() override;
  std::vector<FinishedSample> finished() override;
  void cancel(uint64_t request) override;
  std::vector<std::vector<float>> score(const ForwardRequest& request) override {
    return inner_->score(request);
  }

  void stage(WeightBucket bucket, const std::string& from) override {
    inner_->stage(std::move(bucket), from);
  }
  std::optional<WeightBucket> staged_bucket(uint64_t version, int64_t sender,
                                            int64_t index) const override {
    return inner_->staged_bucket(version, sender, index);
  }
  bool has_staged() const override { return inner_->has_staged(); }
  void forget_staged(const std::function<std::set<std::string>()>& connected) override {
    inner_->forget_staged(connected);
  }
  uint64_t check(const CommitWeights& commit) override { return inner_->check(commit); }
  void apply() override { inner_->apply(); }
  void uncheck() override { inner_->uncheck(); }

  bool leads() const override { return inner_->leads(); }
  void idle() override { inner_->idle(); }
  void stop() override;
  bool follow() override { return inner_->follow(); }
  std::string summary() const override {
    if (history_tokens_ == 0) return inner_->summary();
    return inner_->summary() + "; of " + std::to_string(history_tokens_) +
           " tokens before later turns " + std::to_string(cached_tokens_) + " were in the cache";
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Place = std::pair<uint64_t, int64_t>;  // request, index of its completion

  // Threads of the environment put answers here; it outlives the backend while a call is open.
  struct Answer {
    uint64_t call = 0;
    std::variant<Outcome<OpenedEpisode>, Outcome<EpisodeAnswer>, Outcome<ClosedEpisode>> outcome;
  };
  struct Inbox {
    std::mutex mutex;
    std::condition_variable arrived;
    std::vector<Answer> answers;
  };
  // What its episodes have in common.
  struct Work {
    Episode::Setting setting;
    int64_t step = 0;
    int64_t num_generations = 1;
    int64_t unfinished = 0;
  };
  struct Running {
    Episode episode;
    uint64_t sample_id = 0;
    uint64_t number = 0;  // at the environment, of this attempt; 0: it is not open
    uint64_t turn = 0;    // the inner backend's number, while it is drawn; 0: it is not
    uint64_t call = 0;    // that it waits for; 0: none
    std::function<void()> cancel_call;
    Clock::time_point asked{};
    Clock::duration waited{};  // for earlier calls of this attempt
    Deadline deadline{Clock::time_point::max()};
    Clock::time_point open_after{};
    Clock::time_point opened{};
  };
  // A request to the inner backend: one turn of each of these.
  struct Drawing {
    std::vector<Place> places;
    int64_t unfinished = 0;
  };
  struct Passed {
    uint64_t number = 0;  // ours
    int64_t unfinished = 0;
  };

  uint64_t submit_episodes(const GenerateRequest& request);
  const EnvironmentInfo& environment_info();

  void take_answers();
  void take(Answer answer);
  bool take_outcome(Running& running, Answer& answer);
  void expire();
  void open_waiting();
  int64_t num_open() const;
  void go_on(const Place& place);
  void open(const Place& place, Running& running);
  void draw_first_turns();
  void draw_together(std::vector<Place> group);
  void draw(std::vector<Place> places);
  std::pair<int64_t, int64_t> group_of(const Place& place) const;
  bool waits_for_others(const Place& place) const;
  template <class T>
  void wait_for(const Place& place, Running& running, Future<T> answer);
  void take_drawn();
  void take_turn(FinishedSample sample);
  void end(const Place& place, Running& running);
  void lose(const Place& place, Running& running, const Error& error);
  void leave(Running& running);
  void close_unheard(uint64_t number);
  void fail_request(uint64_t request, std::exception_ptr error);
  void give_up(uint64_t request);
  void wait_for_answers();

  const std::unique_ptr<SampleBackend> inner_;
  const std::shared_ptr<Environment> environment_;
  const TurnWords words_;
  const EpisodeOptions options_;
  const int64_t positions_;  // of the model
  std::optional<EnvironmentInfo> environment_info_;
  std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();

  std::map<uint64_t, Work> works_;  // by request
  std::map<Place, Running> running_;
  std::deque<Place> waiting_;                       // to be opened, in order
  std::multimap<Clock::time_point, Place> paused_;  // to wait so from then on
  std::set<Place> first_;                           // whose first turn is to be drawn
  std::map<uint64_t, Place> calls_;                 // by call
  std::map<uint64_t, Deadline> unheard_;  // calls that close episodes which nobody has any more
  std::map<uint64_t, Drawing> turns_;     // by the inner backend's number
  std::map<uint64_t, Passed> passed_;     // by the inner backend's number
  std::vector<FinishedSample> finished_;
  uint64_t last_request_ = 0, last_episode_ = 0, last_call_ = 0;
  // Tokens before later turns, and those of them that were in the cache, where the engine says so.
  int64_t history_tokens_ = 0, cached_tokens_ = 0;
};

}  // namespace retort::roles

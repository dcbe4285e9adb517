#include "recipes/rollout/rollout_scorer.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <utility>

#include "base/error.h"
#include "models/generation/completion_spans.h"
#include "parallel/vote.h"
#include "recipes/rollout/reward_input.h"

namespace retort::recipes {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Gives the first rank's scores to every rank of the group. The table has two numbers for each
// score, whether there is one and which: of each sample its total, then its components.
void share_scores(const std::vector<RolloutSample*>& samples, size_t components,
                  parallel::Group& group) {
  const auto rows = static_cast<int64_t>(samples.size());
  const auto columns = static_cast<int64_t>(1 + components);
  at::Tensor table = at::zeros({rows, columns, 2}, at::kDouble);
  const bool first = group.rank() == 0;
  const auto each = [&](const auto& visit) {
    double* entry = table.mutable_data_ptr<double>();
    for (RolloutSample* sample : samples) {
      sample->components.resize(components);
      for (size_t c = 0; c <= components; ++c, entry += 2)
        visit(c == 0 ? sample->reward : sample->components[c - 1], entry);
    }
  };

  if (first)
    each([](const std::optional<double>& score, double* entry) {
      entry[0] = score.has_value() ? 1 : 0;
      entry[1] = score.value_or(0);
    });
  group.broadcast(table, 0);
  if (!first)
    each([](std::optional<double>& score, const double* entry) {
      if (entry[0] != 0) score = entry[1];
    });
}

// Ends the scoring of a request, however its finish() ends.
class Forgetting {
 public:
  Forgetting(ScoringQueue& queue, uint64_t number) : queue_(queue), number_(number) {}
  ~Forgetting() { queue_.forget(number_); }
  Forgetting(const Forgetting&) = delete;
  Forgetting& operator=(const Forgetting&) = delete;

 private:
  ScoringQueue& queue_;
  const uint64_t number_;
};

}  // namespace

RolloutScorer::RolloutScorer(std::shared_ptr<rewards::RewardSet> rewards,
                             models::Tokenizer tokenizer, models::StopRule stops)
    : rewards_(std::move(rewards)),
      tokenizer_(std::move(tokenizer)),
      stops_(std::move(stops)),
      queue_(std::make_shared<ScoringQueue>()) {}

RolloutScorer::~RolloutScorer() {
  // The thread may be inside of a reward: the queue ends its loop, and stop() the reward that it
  // waits for.
  queue_->close();
  rewards_->stop();  // which may wait for a role
  if (thread_.joinable()) thread_.join();
}

PendingRollout RolloutScorer::begin(SampleSource& source, RolloutRequest request) {
  std::vector<rewards::RewardInput> prompts;
  for (const data::PromptSample& prompt : request.prompts)
    prompts.push_back(reward_input(prompt));
  const uint64_t number = request.number;
  // The queue must know the request before the source opens a sink for it.
  queue_->add(number, std::move(prompts), static_cast<size_t>(request.num_generations));

  // The source opens a sink on the rank that asks, for each time that it sends the request.
  request.open_sink = [this, number]() -> SampleSink {
    if (!thread_.joinable()) thread_ = std::thread([this] { score_all(); });
    return [queue = queue_, attempt = queue_->open(number)](size_t place,
                                                            models::Completion completion) {
      std::vector<int32_t> prompt = models::take_prompt(completion);
      queue->put(
          attempt,
          {.place = place, .prompt_ids = std::move(prompt), .completion = std::move(completion)});
    };
  };
  return source.begin(std::move(request));
}

// Runs on the scoring thread, one batch after the other. An error ends it, and is thrown where the
// compute thread waits for scores.
void RolloutScorer::score_all() {
  try {
    while (std::optional<ScoringQueue::Batch> batch = queue_->next()) {
      const auto start = Clock::now();
      for (size_t i = 0; i < batch->samples.size(); ++i) {
        ScoringQueue::Arrived& sample = batch->samples[i];
        const models::Completion& completion = sample.completion;
        if (completion.episode.empty()) {
          add_completion(batch->inputs[i], tokenizer_, completion.token_ids,
                         completion.finish_reason, stops_);
          continue;
        }
        sample.episode = read_episode(completion.episode);
        add_episode(batch->inputs[i], tokenizer_, completion, sample.prompt_ids, *sample.episode,
                    stops_);
      }
      std::vector<rewards::Scored> scores = rewards_->score(batch->inputs);
      queue_->finish(*std::move(batch), std::move(scores), seconds_since(start));
    }
  } catch (...) {
    queue_->fail(std::current_exception());
  }
}

Rollout RolloutScorer::finish(SampleSource& source, PendingRollout pending, parallel::Group& mp) {
  const uint64_t number = pending.request.number;
  const Forgetting forgetting(*queue_, number);
  const std::function<void()> meanwhile = pending.meanwhile;
  // The step waits for this request, so it is scored before those of later rounds.
  queue_->prefer(number);
  Rollout rollout = source.finish(std::move(pending));
  std::vector<RolloutSample*> samples;
  for (RolloutGroup& group : rollout.groups)
    for (RolloutSample& sample : group.samples)
      samples.push_back(&sample);
  if (samples.empty()) return rollout;

  // One rank scores, and has read the records of episodes for that. If it fails the others learn it
  // by the vote, before they wait in the broadcast.
  parallel::run_on_all(mp, [&] {
    if (mp.rank() != 0) return read_episodes(rollout);
    const auto start = Clock::now();
    ScoringQueue::Scores scores = queue_->wait(number, meanwhile);
    rollout.reward_wait_seconds = seconds_since(start);
    rollout.reward_seconds = scores.seconds;
    RETORT_CHECK(scores.samples.size() == samples.size());
    for (size_t i = 0; i < samples.size(); ++i) {
      samples[i]->reward = scores.samples[i].total;
      samples[i]->components = std::move(scores.samples[i].components);
      samples[i]->episode = std::move(scores.episodes[i]);
    }
  });
  if (mp.size() > 1) share_scores(samples, names().size(), mp);
  return rollout;
}

}  // namespace retort::recipes

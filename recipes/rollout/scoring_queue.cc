#include "recipes/rollout/scoring_queue.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "models/generation/completion_spans.h"

namespace retort::recipes {

struct ScoringQueue::Attempt {
  std::vector<Arrived> waiting;
  Scores scores;
  std::vector<std::optional<Peek>> scored;  // by place
  size_t num_put = 0, num_scored = 0;
};

ScoringQueue::ScoringQueue() = default;
ScoringQueue::~ScoringQueue() = default;

ScoringQueue::Request& ScoringQueue::at(uint64_t number) {
  const auto found = std::find_if(requests_.begin(), requests_.end(),
                                  [&](const Request& one) { return one.number == number; });
  RETORT_CHECK(found != requests_.end()) << "request " << number << " is not to be scored";
  return *found;
}

void ScoringQueue::add(uint64_t number, std::vector<rewards::RewardInput> prompts,
                       size_t generations) {
  std::lock_guard lock(mutex_);
  requests_.push_back({.number = number,
                       .prompts = std::move(prompts),
                       .generations = generations,
                       .attempt = nullptr});
}

void ScoringQueue::forget(uint64_t number) {
  std::lock_guard lock(mutex_);
  requests_.remove_if([&](const Request& one) { return one.number == number; });
  if (preferred_ == number) preferred_.reset();
}

std::shared_ptr<ScoringQueue::Attempt> ScoringQueue::open(uint64_t number) {
  std::lock_guard lock(mutex_);
  Request& request = at(number);
  request.attempt = std::make_shared<Attempt>();
  const size_t samples = request.prompts.size() * request.generations;
  request.attempt->scores.samples.resize(samples);
  request.attempt->scores.episodes.resize(samples);
  request.attempt->scored.resize(samples);
  return request.attempt;
}

void ScoringQueue::put(const std::shared_ptr<Attempt>& attempt, Arrived sample) {
  {
    std::lock_guard lock(mutex_);
    // An attempt that is not its request's last one may still get samples: next() does not find
    // them any more.
    attempt->waiting.push_back(std::move(sample));
    ++attempt->num_put;
  }
  arrived_.notify_one();
}

void ScoringQueue::prefer(uint64_t number) {
  std::lock_guard lock(mutex_);
  preferred_ = number;
}

std::optional<ScoringQueue::Batch> ScoringQueue::next() {
  const auto has_samples = [](const Request& request) {
    return request.attempt && !request.attempt->waiting.empty();
  };
  std::unique_lock lock(mutex_);
  for (;;) {
    if (closed_ || error_) return std::nullopt;

    // The compute thread waits for the preferred request. The others are scored ahead of their
    // steps, the oldest first.
    auto chosen = std::find_if(requests_.begin(), requests_.end(), [&](const Request& request) {
      return preferred_ == request.number && has_samples(request);
    });
    if (chosen == requests_.end())
      chosen = std::find_if(requests_.begin(), requests_.end(), has_samples);
    if (chosen == requests_.end()) {
      arrived_.wait(lock);
      continue;
    }

    Batch batch{.attempt = chosen->attempt,
                .samples = std::exchange(chosen->attempt->waiting, {}),
                .inputs = {}};
    for (const Arrived& sample : batch.samples)
      batch.inputs.push_back(chosen->prompts.at(sample.place / chosen->generations));
    return batch;
  }
}

void ScoringQueue::finish(Batch batch, std::vector<rewards::Scored> scores, double seconds) {
  RETORT_CHECK(scores.size() == batch.samples.size());
  {
    std::lock_guard lock(mutex_);
    Attempt& attempt = *batch.attempt;
    for (size_t i = 0; i < scores.size(); ++i) {
      Arrived& sample = batch.samples[i];
      std::vector<uint8_t> is_target = models::model_tokens(sample.completion);
      attempt.scored.at(sample.place) = {
          .prompt_ids = std::move(sample.prompt_ids),
          .token_ids = std::move(sample.completion.token_ids),
          .is_target = std::move(is_target),
          .scorable = scores[i].total.has_value(),
          .truncated = sample.completion.finish_reason == models::FinishReason::kLength};
      attempt.scores.samples[sample.place] = std::move(scores[i]);
      attempt.scores.episodes[sample.place] = std::move(sample.episode);
    }
    attempt.num_scored += scores.size();
    attempt.scores.seconds += seconds;
  }
  scored_.notify_all();
}

void ScoringQueue::fail(std::exception_ptr error) {
  {
    std::lock_guard lock(mutex_);
    error_ = std::move(error);
  }
  // The scoring thread has ended, so nobody may wait for it any more.
  scored_.notify_all();
  arrived_.notify_all();
}

void ScoringQueue::close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  scored_.notify_all();
  arrived_.notify_all();
}

std::optional<std::vector<ScoringQueue::Peek>> ScoringQueue::peek(
    uint64_t number, const std::vector<size_t>& places) {
  std::lock_guard lock(mutex_);
  const std::shared_ptr<Attempt>& attempt = at(number).attempt;
  if (!attempt) return std::nullopt;
  std::vector<Peek> samples;
  for (const size_t place : places) {
    const std::optional<Peek>& sample = attempt->scored.at(place);
    if (!sample) return std::nullopt;
    samples.push_back(*sample);
  }
  return samples;
}

ScoringQueue::Scores ScoringQueue::wait(uint64_t number, const std::function<void()>& meanwhile) {
  std::unique_lock lock(mutex_);
  const std::shared_ptr<Attempt> attempt = at(number).attempt;
  RETORT_CHECK(attempt) << "samples of a request that was never sent";
  const size_t expected = attempt->scores.samples.size();
  RETORT_CHECK(attempt->num_put == expected) << "samples that did not come, or came twice";
  const auto over = [&] { return attempt->num_scored == expected || error_ || closed_; };
  // `meanwhile` may peek() at the scores, which takes the lock: so it runs without it, each time
  // after a short wait.
  while (meanwhile && !scored_.wait_for(lock, std::chrono::milliseconds(20), over)) {
    lock.unlock();
    meanwhile();
    lock.lock();
  }
  scored_.wait(lock, over);
  // Complete scores are given out even if a later request has failed meanwhile.
  if (attempt->num_scored == expected) return std::move(attempt->scores);
  if (error_) std::rethrow_exception(error_);
  throw Error(ErrorCode::kClosed, "rewards are not scored any more");
}

}  // namespace retort::recipes

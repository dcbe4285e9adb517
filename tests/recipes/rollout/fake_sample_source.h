// Samples without a generator: a function of the test answers for it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "models/text/tokenizer.h"
#include "recipes/rollout/sample_source.h"

namespace retort::test {

class FakeSampleSource : public recipes::SampleSource {
 public:
  // What a generator with weights `version` says to a prompt.
  using Answer = std::function<models::Completion(const data::PromptSample& prompt,
                                                  uint64_t sample_id, uint64_t version)>;
  struct Asked {
    int64_t step = 0;
    uint64_t number = 0;
    std::vector<std::vector<int32_t>> prompts;
    int64_t num_generations = 0;
    std::vector<uint64_t> sample_ids;
    uint64_t version = 0;
    bool greedy = false;
    bool operator==(const Asked&) const = default;
  };
  struct Pushed {
    uint64_t version = 0;
    size_t in_flight = 0;
    bool operator==(const Pushed&) const = default;
  };

  // What every rollout reports.
  static constexpr double kGenerationSeconds = 0.25;
  static constexpr double kWaitSeconds = 0.125;
  static constexpr double kPushSeconds = 0.5;

  FakeSampleSource(models::Tokenizer tokenizer, Answer answer)
      : tokenizer_(std::move(tokenizer)), answer_(std::move(answer)) {}

  recipes::PendingRollout begin(recipes::RolloutRequest request) override {
    EXPECT_EQ(request.sample_ids.size(),
              request.prompts.size() * static_cast<size_t>(request.num_generations));
    EXPECT_TRUE(waiting_.insert(request.number).second)
        << "request " << request.number << " is on its way already";
    asked.push_back({.step = request.step,
                     .number = request.number,
                     .prompts = {},
                     .num_generations = request.num_generations,
                     .sample_ids = request.sample_ids,
                     .version = pushed_version(),
                     .greedy = request.greedy});
    for (const data::PromptSample& prompt : request.prompts)
      asked.back().prompts.push_back(prompt.prompt_ids);
    if (request.open_sink) sinks_[request.number] = request.open_sink();
    if (draw_ahead) drawn_[request.number] = draw_all(request, pushed_version());
    return {.request = std::move(request), .weight_version = pushed_version(), .parts = {}};
  }

  recipes::Rollout finish(recipes::PendingRollout pending) override {
    EXPECT_EQ(waiting_.erase(pending.request.number), 1u)
        << "request " << pending.request.number << " is not on its way";
    recipes::Rollout rollout{.groups = {},
                             .weight_version = pending.weight_version,
                             .generation_seconds = kGenerationSeconds,
                             .wait_seconds = kWaitSeconds};
    meanwhile = pending.meanwhile;
    const auto ahead = drawn_.extract(pending.request.number);
    if (ended_.erase(pending.request.number) > 0)
      pending.weight_version = rollout.weight_version = pushed_version();
    std::vector<recipes::RolloutSample> samples =
        ahead ? std::move(ahead.mapped()) : draw_all(pending.request, pending.weight_version);
    sinks_.erase(pending.request.number);

    auto next = samples.begin();
    for (data::PromptSample& prompt : pending.request.prompts) {
      recipes::RolloutGroup group{.prompt = std::move(prompt), .samples = {}};
      for (int64_t g = 0; g < pending.request.num_generations; ++g)
        group.samples.push_back(std::move(*next++));
      rollout.groups.push_back(std::move(group));
    }
    return rollout;
  }

  void sync(const models::Decoder&, uint64_t version,
            const std::vector<recipes::PendingRollout*>& in_flight) override {
    if (version == pushed_version()) return;
    for (const recipes::PendingRollout* pending : in_flight)
      EXPECT_TRUE(waiting_.count(pending->request.number))
          << "request " << pending->request.number << " is not on its way";
    if (push_ends_samples)
      for (const recipes::PendingRollout* pending : in_flight)
        ended_.insert(pending->request.number);
    pushed.push_back({.version = version, .in_flight = in_flight.size()});
  }
  uint64_t pushed_version() const override { return pushed.empty() ? 0 : pushed.back().version; }
  double last_push_seconds() const override { return kPushSeconds; }

  // Called before each sample of a request is drawn, with its place there; may be empty.
  std::function<void(size_t place)> before_drawing;
  std::function<void()> meanwhile;  // of the request that is waited for
  bool draw_ahead = false;          // in begin(), not in finish()
  // As with weight_sync.in_flight: abort, where every push meets samples in work: they are drawn
  // anew with the weights that are there when they are waited for.
  bool push_ends_samples = false;
  std::vector<Asked> asked;    // in the order of begin()
  std::vector<Pushed> pushed;  // in the order of sync()

 private:
  // Each of them goes to the request's sink as soon as it is drawn.
  std::vector<recipes::RolloutSample> draw_all(const recipes::RolloutRequest& request,
                                               uint64_t version) {
    std::vector<recipes::RolloutSample> samples;
    for (const data::PromptSample& prompt : request.prompts)
      for (int64_t g = 0; g < request.num_generations; ++g) {
        const size_t place = samples.size();
        if (before_drawing) before_drawing(place);
        const models::Completion drawn = answer_(prompt, request.sample_ids[place], version);
        samples.push_back(sample_of(drawn, request.sample_ids[place], version));
        if (const auto sink = sinks_.find(request.number); sink != sinks_.end())
          sink->second(place, drawn);
      }
    return samples;
  }
  recipes::RolloutSample sample_of(models::Completion completion, uint64_t sample_id,
                                   uint64_t version) const {
    recipes::RolloutSample sample = recipes::sample_of(std::move(completion));
    sample.sample_id = sample_id;
    sample.weight_version = version;
    sample.text = tokenizer_.decode(sample.completion.token_ids, /*skip_special_tokens=*/true);
    return sample;
  }

  models::Tokenizer tokenizer_;
  Answer answer_;
  std::set<uint64_t> waiting_;
  std::set<uint64_t> ended_;  // of those that wait
  // By the request's number.
  std::map<uint64_t, recipes::SampleSink> sinks_;
  std::map<uint64_t, std::vector<recipes::RolloutSample>> drawn_;
};

}  // namespace retort::test

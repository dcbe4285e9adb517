// What the tests of episodes share: words, an environment that follows a script, and an engine that
// says what it is told to.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "roles/environment/environment.h"
#include "roles/episodes/episode_backend.h"
#include "tests/roles/fake_backend.h"
#include "tests/support/temporary_folder.h"

namespace retort::roles {

// ChatML whose tools and calls are Qwen's.
inline constexpr const char* kToolTemplate = R"({%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- for tool in tools %}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- if message.content %}
        {{- message.content }}
    {%- endif %}
    {%- if message.tool_calls %}
        {%- for call in message.tool_calls %}
            {{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
)";

// All bytes and few words, trained once.
inline const models::Tokenizer& tool_tokenizer() {
  static const test::TemporaryFolder folder;
  static const models::Tokenizer tokenizer = [] {
    std::vector<std::string> texts;
    for (int i = 0; i < 40; ++i)
      texts.push_back("<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": " +
                      std::to_string(i) + "}}\n</tool_call>");
    models::train_tokenizer(texts, {.vocab_size = 300}, folder.path());
    return models::Tokenizer::load(folder.path());
  }();
  return tokenizer;
}
inline models::ChatTemplate tool_chat() {
  return models::ChatTemplate::from_source(kToolTemplate, "", "<|im_end|>");
}
inline std::vector<int32_t> tool_ids(const std::string& text) {
  return tool_tokenizer().encode(text, /*add_special_tokens=*/false);
}
inline int32_t turn_end() { return tool_tokenizer().token_to_id("<|im_end|>"); }

inline constexpr const char* kAddTool =
    R"([{"type":"function","function":{"name":"add","parameters":{"type":"object"}}}])";
inline std::string add_call(int a) {
  return "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": " + std::to_string(a) +
         "}}\n</tool_call>";
}

inline std::string row_of(const std::string& question) {
  return R"({"task": 3, "messages": [{"role": "user", "content": ")" + question + R"("}]})";
}

// The request's turns are as long as `max_new_tokens`, and each of its prompts has an episode.
inline GenerateRequest episode_request(uint64_t id, int64_t prompts, int64_t generations,
                                       int64_t max_new_tokens = 40) {
  std::vector<int64_t> sample_ids;
  for (int64_t i = 0; i < prompts * generations; ++i)
    sample_ids.push_back(static_cast<int64_t>(1000 * id) + i);
  GenerateRequest request{
      .request_id = id,
      .step = static_cast<int64_t>(id),
      .prompt_ids = at::tensor(std::vector<int32_t>(), at::kInt),
      .cu_seqlens = at::tensor(std::vector<int32_t>(static_cast<size_t>(prompts) + 1, 0), at::kInt),
      .num_generations = generations,
      .sample_ids = at::tensor(sample_ids, at::kLong),
      .draw = {.sampling = {.temperature = 1, .seed = 5},
               .max_new_tokens = max_new_tokens,
               .eos_token_ids = {turn_end()}}};
  for (int64_t i = 0; i < prompts; ++i)
    request.episodes.push_back(
        {.seed = static_cast<uint64_t>(7 + i), .row = row_of("Task " + std::to_string(i))});
  return request;
}

// What it says depends on the episode's seed and turn alone, and so does its reward. Answers come
// on a thread of its own if `delay` is set, else at once; or never.
class ScriptedEnvironment : public Environment {
 public:
  ScriptedEnvironment() = default;
  ~ScriptedEnvironment() override {
    for (std::thread& thread : threads_)
      thread.join();
  }

  static std::string answer_text(uint64_t seed, int64_t turn) {
    return "seed " + std::to_string(seed) + " turn " + std::to_string(turn);
  }

  EnvironmentInfo info() override {
    if (not_ready) throw Error(ErrorCode::kTimeout, "it did not start");
    return {.name = "tools/0", .user_turns = user_turns, .episodes = episodes};
  }
  Future<OpenedEpisode> open(OpenEpisode request) override {
    const std::lock_guard lock(mutex);
    opened.push_back(request);
    known_.insert(request.episode);
    most_open = std::max(most_open, static_cast<int64_t>(known_.size()));
    return answer<OpenedEpisode>("open", request.episode, [this, request] {
      open_[request.episode] = request.seed;
      return OpenedEpisode{.tools = tools, .messages = opening};
    });
  }
  Future<EpisodeAnswer> step(EpisodeTurn turn) override {
    const std::lock_guard lock(mutex);
    turns.push_back(turn);
    return answer<EpisodeAnswer>("step", turn.episode, [this, turn] {
      if (on_step) return on_step(turn);
      // It may have been closed meanwhile, and then nobody reads this.
      const std::string text = answer_text(open_[turn.episode], turn.turn);
      return EpisodeAnswer{.messages = std::string(R"([{"role": ")") +
                                       (user_turns ? "user" : "tool") + R"(", "content": ")" +
                                       text + R"("}])",
                           .done = turn.turn >= last_turn};
    });
  }
  Future<ClosedEpisode> close(CloseEpisode request) override {
    const std::lock_guard lock(mutex);
    closed.push_back(request.episode);
    return answer<ClosedEpisode>("close", request.episode, [this, request] {
      const auto seed = static_cast<double>(open_[request.episode]);
      open_.erase(request.episode);
      known_.erase(request.episode);
      return ClosedEpisode{.reward = seed / 2, .metrics = R"({"solved": 1})"};
    });
  }
  void stop() override { stopped = true; }

  bool user_turns = false, not_ready = false, stopped = false;
  int64_t episodes = 64, last_turn = 1'000'000;
  std::string tools = kAddTool, opening = "[]";
  std::function<EpisodeAnswer(const EpisodeTurn&)> on_step;
  // The error of a call, asked once for each; and whether it is never answered.
  std::function<std::optional<Error>(const std::string& verb, uint64_t episode)> fails;
  std::function<bool(const std::string& verb, uint64_t episode)> hangs;
  std::optional<std::chrono::milliseconds> delay;

  std::mutex mutex;  // of what follows
  std::vector<OpenEpisode> opened;
  std::vector<EpisodeTurn> turns;
  std::vector<uint64_t> closed;
  int64_t most_open = 0;
  int cancelled = 0;

 private:
  template <class T, class Make>
  Future<T> answer(const std::string& verb, uint64_t episode, Make make) {
    Promise<T> promise;
    Future<T> future = promise.future();
    if (hangs && hangs(verb, episode)) {
      // It lives as long as the environment, and the future with it.
      promise.on_cancel([this] { ++cancelled; });
      held_.push_back([promise] {});
      return future;
    }
    const std::optional<Error> error = fails ? fails(verb, episode) : std::nullopt;
    if (error) {
      open_.erase(episode);
      known_.erase(episode);
      promise.set_error(std::make_exception_ptr(*error));
    } else if (delay) {
      threads_.emplace_back([this, promise, make, wait = *delay]() mutable {
        std::this_thread::sleep_for(wait);
        std::optional<T> value;
        {
          const std::lock_guard lock(mutex);
          value = make();
        }
        promise.set_value(std::move(*value));
      });
    } else {
      promise.set_value(make());
    }
    return future;
  }

  std::map<uint64_t, uint64_t> open_;  // the seed of each
  std::set<uint64_t> known_;           // those that are being opened, too
  std::vector<std::function<void()>> held_;
  std::vector<std::thread> threads_;
};

// An engine that says what the test has it say: text, and the token that ends a turn. A turn is
// there with the next step.
class TalkingBackend : public FakeBackend {
 public:
  GeneratorInfo info() const override {
    return {.weight_version = weight_version(), .max_position_embeddings = positions};
  }
  uint64_t submit(const GenerateRequest& request) override {
    if (refuses) throw Error(ErrorCode::kInvalidArgument, "the engine does not take this");
    asked.push_back(request);
    waiting_.emplace_back(++last_, request);
    return last_;
  }
  bool step() override {
    ++steps;
    if (waiting_.empty() || holds) return !waiting_.empty();
    for (const auto& [number, request] : std::exchange(waiting_, {}))
      for (int64_t i = 0; i < request.sample_ids.numel(); ++i)
        done_.push_back({.request = number, .index = i, .completion = say(request)});
    return true;
  }
  std::vector<FinishedSample> finished() override { return std::exchange(done_, {}); }
  void cancel(uint64_t request) override {
    FakeBackend::cancel(request);
    std::erase_if(waiting_, [&](const auto& one) { return one.first == request; });
  }
  void idle() override { ++idles; }

  // A turn of these words, each token with a log-probability that names its place.
  static models::Completion turn_of(const std::string& text,
                                    std::optional<int32_t> end = turn_end(),
                                    models::FinishReason reason = models::FinishReason::kEos) {
    models::Completion turn{.token_ids = tool_ids(text), .finish_reason = reason};
    if (end) turn.token_ids.push_back(*end);
    for (size_t i = 0; i < turn.token_ids.size(); ++i) {
      turn.logps.push_back(-1.0F - static_cast<float>(i));
      turn.sampling_logps.push_back(-2.0F - static_cast<float>(i));
    }
    return turn;
  }

  std::function<models::Completion(const GenerateRequest&)> say = [](const GenerateRequest&) {
    return turn_of("Yes.");
  };
  bool refuses = false, holds = false;
  int64_t positions = 0;
  std::vector<GenerateRequest> asked;
  int64_t steps = 0, idles = 0;

 private:
  uint64_t last_ = 0;
  std::vector<std::pair<uint64_t, GenerateRequest>> waiting_;
  std::vector<FinishedSample> done_;
};

inline std::unique_ptr<EpisodeBackend> episodes_over(std::unique_ptr<SampleBackend> inner,
                                                     std::shared_ptr<Environment> environment,
                                                     EpisodeOptions options = {}) {
  return std::make_unique<EpisodeBackend>(std::move(inner), std::move(environment), tool_chat(),
                                          tool_tokenizer(), options);
}

// All that comes, in the order of the requests and their completions.
inline std::vector<FinishedSample> all_of(SampleBackend& backend) {
  std::vector<FinishedSample> all;
  const Deadline deadline = Deadline::after(std::chrono::seconds(100));
  while (!deadline.expired() && backend.step())
    for (FinishedSample& sample : backend.finished())
      all.push_back(std::move(sample));
  EXPECT_FALSE(deadline.expired()) << "it does not come to an end";
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return std::pair(a.request, a.index) < std::pair(b.request, b.index);
  });
  return all;
}

inline nlohmann::ordered_json record_of(const models::Completion& episode) {
  return nlohmann::ordered_json::parse(episode.episode);
}

}  // namespace retort::roles

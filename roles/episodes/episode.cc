#include "roles/episodes/episode.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"

namespace retort::roles {
namespace {

bool holds_id(const std::vector<int64_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

[[noreturn]] void refuse_reply(const std::string& what) {
  throw Error(ErrorCode::kCorrupt, "environment: " + what);
}

void check_metrics(const std::string& text) {
  const nlohmann::ordered_json metrics =
      json_nesting(text) > kMaxJsonNesting
          ? nlohmann::ordered_json(nullptr)
          : nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!metrics.is_object()) refuse_reply("the metrics of an episode are no JSON object");
  for (const auto& [name, value] : metrics.items())
    if (!value.is_number() || !std::isfinite(value.get<double>()))
      refuse_reply("the metric '" + name + "' of an episode is no finite number");
}

}  // namespace

void EpisodeOptions::validate() const {
  const auto expect = [](bool fine, const char* field, int64_t value, const char* expected) {
    if (!fine)
      throw Error(ErrorCode::kInvalidArgument,
                  "environment." + std::string(field) + " must be " + expected)
          .with(field, value);
  };
  expect(max_turns >= 1, "max_turns", max_turns, "at least 1");
  expect(max_tokens >= 1, "max_tokens", max_tokens, "at least 1");
  expect(max_prompt_tokens >= 0, "max_prompt_tokens", max_prompt_tokens, "0 or positive");
  expect(timeout.count() >= 1, "timeout", timeout.count(), "at least 1ms");
  expect(episode_timeout >= timeout, "episode_timeout", episode_timeout.count(),
         "at least environment.timeout");
  expect(restarts >= 0, "restarts", restarts, "0 or positive");
}

Duration EpisodeOptions::patience() const {
  constexpr Duration kGrace{10'000};
  return timeout + std::min(timeout, kGrace);
}

Duration pause_before(int64_t restarts) {
  constexpr Duration kFirst{1000}, kLongest{30'000};
  const int64_t doublings = std::clamp<int64_t>(restarts - 1, 0, 10);
  return std::min(kFirst * (int64_t{1} << doublings), kLongest);
}

Episode::Episode(const Setting& setting, EpisodeStart start)
    : setting_(&setting), start_(std::move(start)), conversation_(start_.row, start_.messages) {}

void Episode::forget_tokens() {
  ids_.clear();
  spans_.clear();
  logps_.clear();
  sampling_logps_.clear();
  knows_logps_ = knows_sampling_logps_ = true;
  prompt_tokens_ = history_tokens_ = 0;
}

// Forgets an attempt: the next one begins from the row.
void Episode::begin() {
  next_ = Next::kOpen;
  unscorable_.clear();
  conversation_ = Conversation(start_.row, start_.messages);
  forget_tokens();
  turns_ = calls_ = failed_calls_ = malformed_ = 0;
}

// Counts the tokens that may still be added: those of an episode, and those that the model has
// positions for.
int64_t Episode::room() const {
  const int64_t left = setting_->options->max_tokens - continues();
  if (setting_->positions <= 0) return left;
  return std::min(left, setting_->positions - static_cast<int64_t>(ids_.size()));
}

void Episode::append(models::SpanSource source, const std::vector<int32_t>& ids) {
  if (ids.empty()) return;
  const bool drawn = source == models::SpanSource::kModel;
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  spans_.push_back({.source = source,
                    .weight_version = drawn ? setting_->weight_version : 0,
                    .tokens = static_cast<int64_t>(ids.size())});
  if (drawn) return;
  logps_.resize(ids_.size());
  sampling_logps_.resize(ids_.size());
}

// An engine that is not ours may not know these; then none of the episode are known.
void Episode::append_numbers(const models::Completion& turn) {
  const size_t tokens = turn.token_ids.size();
  const auto add = [&](const std::vector<float>& from, std::vector<float>& to, bool& known) {
    known = known && from.size() == tokens;
    to.insert(to.end(), from.begin(), from.end());
    to.resize(ids_.size());
  };
  add(turn.logps, logps_, knows_logps_);
  add(turn.sampling_logps, sampling_logps_, knows_sampling_logps_);
}

OpenEpisode Episode::to_open(uint64_t number) const {
  return {.episode = number, .seed = start_.seed, .row = start_.row};
}

// An environment writes a part of the prompt, so that only now it is seen how long that is. True
// for one that no row has room for: nothing is drawn, and its tokens are left out.
bool Episode::refuse_long_prompt() {
  const int64_t most = setting_->options->max_prompt_tokens;
  if (most <= 0 || prompt_tokens_ <= most) return false;
  unscorable_ = "the prompt has " + std::to_string(prompt_tokens_) +
                " tokens with what the environment adds, and data.max_length leaves it " +
                std::to_string(most) +
                " beside environment.max_tokens; raise data.max_length, or lower the other";
  forget_tokens();
  finish(models::FinishReason::kLength);
  return true;
}

// Renders a conversation that a model can answer.
std::vector<int32_t> Episode::prompt_of(const Conversation& conversation) const {
  const TurnWords& words = *setting_->words;
  const std::string text =
      words.chat
          .render(conversation.messages(), /*add_generation_prompt=*/true, conversation.variables())
          .text;
  std::vector<int32_t> ids = words.tokenizer.encode(text, /*add_special_tokens=*/false);
  const auto tokens = static_cast<int64_t>(ids.size());
  if (tokens == 0 || (setting_->positions > 0 && tokens >= setting_->positions))
    throw Error(ErrorCode::kInvalidArgument,
                tokens == 0 ? "the prompt of an episode has no tokens"
                            : "the prompt of an episode leaves the model no position for an answer")
        .with("prompt_tokens", tokens)
        .with("max_position_embeddings", setting_->positions);
  return ids;
}

void Episode::opened(const OpenedEpisode& opened) {
  RETORT_CHECK(next_ == Next::kOpen) << "an episode is opened twice";
  conversation_.open(opened);
  std::vector<int32_t> prompt;
  try {
    prompt = prompt_of(conversation_);
    opens_thought_ = setting_->words->suffix.opens_thought(conversation_.variables());
  } catch (const Error& error) {
    // A row that makes no prompt by itself is the one to blame.
    prompt_of(Conversation(start_.row, start_.messages));
    throw Error(ErrorCode::kMismatch,
                "environment " + setting_->environment +
                    ": with the tools, messages and append that it begins an episode with, " +
                    error.what() +
                    "; the row alone makes a prompt. Let it begin with less, or with what the "
                    "chat template takes");
  }
  append(models::SpanSource::kPrompt, prompt);
  prompt_tokens_ = static_cast<int64_t>(ids_.size());
  if (!refuse_long_prompt()) next_ = Next::kDraw;
}

// A turn ends where the draw says, and with the token that ends a turn of the template, which an
// answer needs even where the model's configuration has another one.
models::DrawOptions Episode::draw() const {
  models::DrawOptions draw = setting_->draw;
  const int32_t end = setting_->words->suffix.end_of_turn();
  if (!holds_id(draw.eos_token_ids, end)) draw.eos_token_ids.push_back(end);
  draw.max_new_tokens = std::min(draw.max_new_tokens, room());
  draw.min_new_tokens = std::min(draw.min_new_tokens, draw.max_new_tokens);
  return draw;
}

GenerateRequest Episode::to_draw(uint64_t request, int64_t step,
                                 const std::vector<int64_t>& sample_ids) const {
  const auto tokens = static_cast<int64_t>(ids_.size());
  return {.request_id = request,
          .step = step,
          .weight_version = setting_->weight_version,
          .prompt_ids = at::tensor(ids_, at::kInt),
          .cu_seqlens = at::tensor({int64_t{0}, tokens}, at::kInt),
          .num_generations = static_cast<int64_t>(sample_ids.size()),
          .sample_ids = at::tensor(sample_ids, at::kLong),
          .draw = draw(),
          .continues = continues()};
}

// Reads a turn without the token that ended it. One that was cut is text, whatever is in it.
models::ParsedTurn Episode::parse(const models::Completion& turn) const {
  std::span<const int32_t> ids = turn.token_ids;
  const bool cut = turn.finish_reason == models::FinishReason::kLength;
  if (!cut && !ids.empty() && holds_id(draw().eos_token_ids, ids.back()))
    ids = ids.first(ids.size() - 1);
  std::string text = setting_->words->tokenizer.decode(ids, /*skip_special_tokens=*/false);
  if (cut) return {.content = std::move(text)};

  models::ParsedTurn parsed = models::parse_tool_calls(setting_->options->format, text,
                                                       conversation_.tools(), opens_thought_);
  if (!has_readable_calls(parsed)) return {.content = std::move(text), .malformed = true};
  return parsed;
}

void Episode::drawn(const models::Completion& turn) {
  RETORT_CHECK(next_ == Next::kDraw) << "a turn that nobody asked for";
  const models::ParsedTurn parsed = parse(turn);
  append(models::SpanSource::kModel, turn.token_ids);
  append_numbers(turn);
  history_tokens_ = static_cast<int64_t>(ids_.size());
  conversation_.add_turn(parsed);
  ++turns_;
  if (parsed.malformed) ++malformed_;

  // The last turn that an episode may have is not answered, as nobody would read the answer.
  if (turn.finish_reason == models::FinishReason::kLength)
    finish(models::FinishReason::kLength);
  else if (parsed.calls.empty() && !setting_->answers_turns)
    finish(models::FinishReason::kEos);
  else if (turns_ >= setting_->options->max_turns)
    finish(models::FinishReason::kLength);
  else
    next_ = Next::kStep;
}

EpisodeTurn Episode::to_step(uint64_t number) const {
  return {.episode = number,
          .turn = turns_,
          .text = conversation_.text(),
          .calls = conversation_.calls()};
}

// Returns what stands between the model's last token and its next one.
std::vector<int32_t> Episode::answer_ids(const EpisodeAnswer& answer) const {
  const models::TurnSuffix& suffix = setting_->words->suffix;
  std::vector<int32_t> ids;
  if (ids_.back() != suffix.end_of_turn()) ids.push_back(suffix.end_of_turn());
  const std::vector<int32_t> rest = suffix.ids(answer.messages, conversation_.variables());
  ids.insert(ids.end(), rest.begin(), rest.end());
  return ids;
}

void Episode::answered(const EpisodeAnswer& answer) {
  RETORT_CHECK(next_ == Next::kStep) << "an answer to nothing";
  if (answer.failed_calls < 0 || answer.failed_calls > conversation_.num_calls())
    refuse_reply(std::to_string(answer.failed_calls) + " calls failed of " +
                 std::to_string(conversation_.num_calls()));
  if (!answer.done) check_answers(answer.messages, conversation_.num_calls());
  calls_ += conversation_.num_calls();
  failed_calls_ += answer.failed_calls;

  // Nobody reads the tokens behind the model's last turn.
  if (answer.done) {
    conversation_.add_answers(answer.messages);
    return finish(models::FinishReason::kEos);
  }

  // TRL's bounds: the answer may fill the episode's tokens, but the model needs a position behind
  // it.
  const std::vector<int32_t> ids = answer_ids(answer);
  const auto tokens = static_cast<int64_t>(ids.size());
  const bool passes_tokens = continues() + tokens > setting_->options->max_tokens;
  const bool passes_positions =
      setting_->positions > 0 && static_cast<int64_t>(ids_.size()) + tokens >= setting_->positions;
  if (passes_tokens || passes_positions) return finish(models::FinishReason::kLength);

  conversation_.add_answers(answer.messages);
  append(models::SpanSource::kEnvironment, ids);
  if (room() > 0)
    next_ = Next::kDraw;
  else
    finish(models::FinishReason::kLength);
}

void Episode::finish(models::FinishReason reason) {
  finish_reason_ = reason;
  next_ = Next::kClose;
}

void Episode::closed(const ClosedEpisode& closed) {
  RETORT_CHECK(next_ == Next::kClose) << "an episode is closed twice";
  if (closed.reward && !std::isfinite(*closed.reward)) refuse_reply("a reward is not finite");
  check_metrics(closed.metrics);
  result_ = closed;
  next_ = Next::kEnd;
}

void Episode::failed(const std::string& why, bool again) {
  if (again && restarts_ < setting_->options->restarts) {
    ++restarts_;
    return begin();
  }
  unscorable_ = why;
  finish_reason_ = models::FinishReason::kLength;
  next_ = Next::kEnd;
}

std::string Episode::record() const {
  JsonLine line;
  line.raw("reward", result_.reward ? json_number(*result_.reward) : "null")
      .raw("metrics", result_.metrics)
      .raw("messages", conversation_.messages())
      .add("turns", turns_)
      .add("calls", calls_)
      .add("failed_calls", failed_calls_)
      .add("malformed", malformed_)
      .add("restarts", restarts_);
  // An environment's words may be any bytes.
  if (!unscorable_.empty())
    line.raw(
        "unscorable",
        nlohmann::json(unscorable_).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  return line.str();
}

models::Completion Episode::take() {
  RETORT_CHECK(next_ == Next::kEnd) << "an episode that goes on is taken";
  if (!knows_logps_) logps_.clear();
  if (!knows_sampling_logps_) sampling_logps_.clear();
  return {.token_ids = std::move(ids_),
          .spans = std::move(spans_),
          .episode = record(),
          .logps = std::move(logps_),
          .sampling_logps = std::move(sampling_logps_),
          .finish_reason = finish_reason_};
}

}  // namespace retort::roles

#include "engines/probing/questions.h"

#include <ATen/ops/isfinite.h>

#include <cmath>
#include <utility>

#include "base/error.h"
#include "engines/probing/answer_checks.h"

namespace retort::engines {
namespace {

// Waits for all answers and returns them in order. When one fails, those that are open are
// cancelled, so that the engine does not work for nobody.
template <class Answer>
std::vector<Answer> wait_for(std::vector<Future<Answer>> open, Deadline deadline) {
  std::vector<Answer> answers;
  try {
    for (Future<Answer>& future : open)
      answers.push_back(future.get(deadline));
  } catch (...) {
    for (const Future<Answer>& future : open)
      if (future.valid()) future.canceller()();
    throw;
  }
  return answers;
}

// Runs `ask`; its errors name the question.
template <class Ask>
auto named(const std::string& what, Ask&& ask) {
  try {
    return ask();
  } catch (const Error& error) {
    throw error.with("probe", what);
  }
}

void check_hidden(const ScoreRequest& request, const at::Tensor& states) {
  const auto rows = static_cast<int64_t>(request.positions.size());
  if (!states.defined() || states.dim() != 2 || states.size(0) != rows ||
      !states.is_floating_point() || !states.is_cpu())
    throw Error(ErrorCode::kCorrupt, "the engine's answer: hidden states are not [" +
                                         std::to_string(rows) + ", H] numbers on the host");
  if (!at::isfinite(states).all().item<bool>())
    throw Error(ErrorCode::kCorrupt, "the engine's answer: hidden states are not finite");
}

void check_at_named(const at::Tensor& ids, const at::Tensor& values) {
  constexpr double kRoundedOne = 1e-5;  // rounding of a probability of 1
  if (!values.defined() || values.sizes() != ids.sizes() || values.scalar_type() != at::kFloat ||
      !values.is_cpu())
    throw Error(ErrorCode::kCorrupt,
                "the engine's answer: log-probabilities at named ids are not "
                "[" +
                    std::to_string(ids.size(0)) + ", " + std::to_string(ids.size(1)) +
                    "] float32 on the host");
  if (!values.le(kRoundedOne).all().item<bool>())
    throw Error(ErrorCode::kCorrupt,
                "the engine's answer: log-probabilities at named ids are no numbers, or above 0");
}

}  // namespace

Questions::Questions(Engine& engine, int64_t ids, Deadline deadline)
    : engine_(engine), ids_(ids), deadline_(deadline) {}

std::vector<Drawn> Questions::draw_together(const std::string& what,
                                            std::vector<DrawRequest> requests) {
  return named(what, [&] {
    std::vector<Future<Drawn>> open;
    for (const DrawRequest& request : requests) {
      ++requests_;
      tokens_ += static_cast<int64_t>(request.prompt.size()) + request.how.max_new_tokens;
      open.push_back(engine_.draw(request, deadline_));
    }
    std::vector<Drawn> answers = wait_for(std::move(open), deadline_);
    for (size_t i = 0; i < answers.size(); ++i)
      check_answer(requests[i], answers[i], ids_);
    return answers;
  });
}

std::vector<Scored> Questions::score_together(const std::string& what,
                                              std::vector<ScoreRequest> requests) {
  return named(what, [&] {
    std::vector<Future<Scored>> open;
    for (const ScoreRequest& request : requests) {
      ++requests_;
      tokens_ += static_cast<int64_t>(request.token_ids.size());
      open.push_back(engine_.score(request, deadline_));
    }
    std::vector<Scored> answers = wait_for(std::move(open), deadline_);
    for (size_t i = 0; i < answers.size(); ++i)
      check_answer(requests[i], answers[i], ids_);
    return answers;
  });
}

std::vector<double> Questions::reward_together(const std::string& what,
                                               std::vector<RewardRequest> requests) {
  return named(what, [&] {
    std::vector<Future<double>> open;
    for (RewardRequest& request : requests) {
      ++requests_;
      tokens_ += static_cast<int64_t>(request.prompt.size() + request.completion.size());
      open.push_back(engine_.reward(std::move(request), deadline_));
    }
    std::vector<double> answers = wait_for(std::move(open), deadline_);
    for (const double answer : answers)
      if (!std::isfinite(answer))
        throw Error(ErrorCode::kCorrupt, "the engine's answer: a reward is not finite");
    return answers;
  });
}

std::vector<Written> Questions::write_together(const std::string& what,
                                               std::vector<WriteRequest> requests) {
  return named(what, [&] {
    std::vector<Future<Written>> open;
    for (WriteRequest& request : requests) {
      ++requests_;
      tokens_ += request.max_new_tokens;
      open.push_back(engine_.write(std::move(request), deadline_));
    }
    return wait_for(std::move(open), deadline_);
  });
}

Drawn Questions::draw(const std::string& what, DrawRequest request) {
  return std::move(draw_together(what, {std::move(request)}).front());
}

Scored Questions::score(const std::string& what, ScoreRequest request) {
  return std::move(score_together(what, {std::move(request)}).front());
}

at::Tensor Questions::hidden_states(const std::string& what, ScoreRequest request) {
  return named(what, [&] {
    ++requests_;
    tokens_ += static_cast<int64_t>(request.token_ids.size());
    std::vector<Future<at::Tensor>> open;
    open.push_back(engine_.hidden_states(request, deadline_));
    const at::Tensor states = wait_for(std::move(open), deadline_).front();
    check_hidden(request, states);
    return states;
  });
}

at::Tensor Questions::log_probs_at(const std::string& what, ScoreRequest request,
                                   const at::Tensor& ids) {
  return named(what, [&] {
    ++requests_;
    tokens_ += static_cast<int64_t>(request.token_ids.size());
    std::vector<Future<at::Tensor>> open;
    open.push_back(engine_.log_probs_at(std::move(request), ids, deadline_));
    const at::Tensor values = wait_for(std::move(open), deadline_).front();
    check_at_named(ids, values);
    return values.contiguous();
  });
}

}  // namespace retort::engines

#include "engines/contract/engine.h"

#include <numeric>
#include <utility>

#include "http/url.h"

namespace retort::engines {
namespace {

template <class T>
Future<T> refused(const std::string& what) {
  Promise<T> promise;
  promise.set_error(
      std::make_exception_ptr(Error(ErrorCode::kInvalidArgument, "this engine cannot " + what)));
  return promise.future();
}

}  // namespace

ScoreRequest score_all(std::vector<int32_t> token_ids, int64_t top_k) {
  ScoreRequest request{.token_ids = std::move(token_ids), .positions = {}, .top_k = top_k};
  if (request.token_ids.empty()) return request;
  request.positions.resize(request.token_ids.size() - 1);
  std::iota(request.positions.begin(), request.positions.end(), 0);
  return request;
}

bool is_absent(const Error& error) {
  return error.code() == ErrorCode::kUnavailable || error.code() == ErrorCode::kTimeout;
}

bool is_absent(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    return is_absent(known);
  } catch (const std::exception&) {
    return false;
  }
}

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  }
}

Deadline deadline_behind(int64_t before, Duration timeout) {
  return Deadline::after(timeout * (1 + before));
}

std::string shown_url(const std::string& url) { return http::without_secrets(url); }

Future<Drawn> Engine::draw(DrawRequest, Deadline) { return refused<Drawn>("draw completions"); }

Future<Scored> Engine::score(ScoreRequest, Deadline) {
  return refused<Scored>("score tokens that are given");
}

Future<at::Tensor> Engine::hidden_states(ScoreRequest, Deadline) {
  return refused<at::Tensor>("give hidden states");
}

Future<at::Tensor> Engine::log_probs_at(ScoreRequest, at::Tensor, Deadline) {
  return refused<at::Tensor>("score ids that are named");
}

Future<double> Engine::reward(RewardRequest, Deadline) {
  return refused<double>("score completions");
}

Future<Written> Engine::write(WriteRequest, Deadline) {
  return refused<Written>("answer in words");
}

Future<Empty> Engine::load_weights(std::string, Deadline) {
  return refused<Empty>("load other weights while it runs");
}

}  // namespace retort::engines

#include "engines/engine.h"

#include "base/error.h"

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

Future<Drawn> Engine::draw(DrawRequest, Deadline) { return refused<Drawn>("draw completions"); }

Future<Scored> Engine::score(ScoreRequest, Deadline) {
  return refused<Scored>("score tokens that are given");
}

Future<at::Tensor> Engine::hidden_states(ScoreRequest, Deadline) {
  return refused<at::Tensor>("give hidden states");
}

Future<double> Engine::reward(RewardRequest, Deadline) {
  return refused<double>("score completions");
}

Future<Empty> Engine::load_weights(std::string, Deadline) {
  return refused<Empty>("load other weights while it runs");
}

}  // namespace retort::engines

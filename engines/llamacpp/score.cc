#include "engines/llamacpp/score.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"
#include "engines/llamacpp/request_checks.h"

namespace retort::engines::llamacpp {
namespace {

template <class T>
at::Tensor tensor_of(const std::vector<T>& values, int64_t rows, int64_t columns,
                     at::ScalarType dtype) {
  at::Tensor tensor = at::empty({rows, columns}, dtype);
  RETORT_CHECK(static_cast<size_t>(tensor.numel()) == values.size()) << "a row has another length";
  if (!values.empty()) std::memcpy(tensor.mutable_data_ptr(), values.data(), tensor.nbytes());
  return tensor;
}

}  // namespace

ScoreRun::ScoreRun(Session& session, ScoreRequest request, Deadline deadline)
    : Run(session.loop()),
      session_(session),
      request_(std::move(request)),
      ids_(request_.token_ids),
      deadline_(deadline) {}

void ScoreRun::begin() {
  await(session_.served(deadline_), [this](const ServedModel& served) {
    vocab_rows_ = served.state.vocab_rows;
    check_request(request_, vocab_rows_);
    // A slot is held for all positions: each prefix then costs the server one new token, because no
    // other sequence replaces what the slot has cached.
    await(session_.slots().acquire(deadline_), [this](Empty) {
      under_way_ = true;
      next();
    });
  });
}

void ScoreRun::ended() {
  if (under_way_) session_.slots().release();
}

void ScoreRun::next() {
  if (given_.size() == request_.positions.size()) {
    finish(scored());
    return;
  }
  // Positions are asked for one after the other and in order, so that the server extends the prefix
  // that it has.
  const auto position = static_cast<size_t>(request_.positions[given_.size()]);
  PositionQuestion question{.ids = ids_,
                            .prefix = position + 1,
                            .given = request_.token_ids[position + 1],
                            .top_k = request_.top_k};
  const auto run =
      std::make_shared<PositionRun>(session_, std::move(question), vocab_rows_, deadline_);
  await(run->start(), [this](const Position& answer) {
    add(answer);
    next();
  });
}

void ScoreRun::add(const Position& position) {
  given_.push_back(position.given);
  top_ids_.insert(top_ids_.end(), position.top_ids.begin(), position.top_ids.end());
  top_log_probs_.insert(top_log_probs_.end(), position.top_log_probs.begin(),
                        position.top_log_probs.end());
}

Scored ScoreRun::scored() const {
  Scored scored{.given = given_};
  if (request_.top_k == 0) return scored;
  const auto rows = static_cast<int64_t>(given_.size());
  scored.ids = tensor_of(top_ids_, rows, request_.top_k, at::kInt);
  scored.log_probs = tensor_of(top_log_probs_, rows, request_.top_k, at::kFloat);
  return scored;
}

}  // namespace retort::engines::llamacpp

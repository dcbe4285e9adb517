#include "roles/reward/score_server.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "models/decoder/sequence_scores.h"
#include "roles/reward/checks.h"

namespace retort::roles {
namespace {

// Returns the label's number for the hidden state `row` [1, H].
double number_of(const models::Head& head, const at::Tensor& row, int64_t label) {
  const c10::NoGradGuard no_grad;
  return models::sequence_scores(head, row.to(head.weight.device()))
      .select(1, label)
      .item<double>();
}

// A question whose sequences are computed one by one; the last score, or the first failure, answers
// it.
struct OpenQuestion {
  RewardAnswer answer;
  size_t missing = 0;
  bool failed = false;  // the caller knows
  Promise<RewardAnswer> promise;

  void put(size_t sequence, double score) {
    answer.scores.at(sequence) = score;
    if (--missing == 0 && !failed) promise.set_value(std::move(answer));
  }
  void fail(const std::exception_ptr& error) {
    if (!std::exchange(failed, true)) promise.set_error(error);
  }
};

}  // namespace

ScoreServer::ScoreServer(std::string name, models::Decoder decoder, models::Tokenizer tokenizer,
                         Teacher::Replica replica)
    : config_(decoder.config()),
      head_(decoder.head()),
      teacher_(std::move(name), std::move(decoder), std::move(tokenizer), std::move(replica)) {
  RETORT_CHECK(config_.classifies()) << "a language model scores nothing";
}

void ScoreServer::serve(rpc::Agent& agent, std::shared_ptr<rpc::HandlerQueue> queue) {
  if (!leads()) return;
  agent.serve(kTeacherInfo, queue,
              [this](const InfoRequest& r, const rpc::CallContext&) { return info(r); });
  agent.serve(kRewardScore, queue, [this](const RewardQuestion& r, const rpc::CallContext& caller) {
    return score(r, caller);
  });
}

// The request's one position is the one at which the sequence's numbers are read.
ForwardRequest ScoreServer::request_of(const RewardQuestion& question, size_t sequence) {
  const auto begin = question.input_ids.begin() + question.cu_seqlens[sequence];
  const auto end = question.input_ids.begin() + question.cu_seqlens[sequence + 1];
  const std::vector<int32_t> ids(begin, end);
  const int64_t position = models::score_position(ids, config_.classifier.pad_token_id);
  const std::vector<int32_t> ends{0, static_cast<int32_t>(ids.size())};
  return {.request_id = question.request_id,
          .step = ++asked_,
          .input_ids = at::tensor(ids, at::kInt),
          .cu_seqlens = at::tensor(ends, at::kInt),
          .positions = at::full({1}, position, at::kInt),
          .spec = {.kind = PayloadKind::kHiddenStates},
          .columns = {}};
}

Future<RewardAnswer> ScoreServer::score(const RewardQuestion& question,
                                        const rpc::CallContext& caller) {
  check_question(question, config_.vocab_size);
  if (question.label >= config_.classifier.num_labels)
    throw Error(ErrorCode::kInvalidArgument,
                "reward.score: label " + std::to_string(question.label) +
                    " is asked of a model of " + std::to_string(config_.classifier.num_labels) +
                    " labels")
        .with("request", question.request_id);
  for (size_t s = 0; s < question.num_sequences(); ++s)
    if (question.cu_seqlens[s + 1] - question.cu_seqlens[s] > config_.max_position_embeddings)
      throw Error(ErrorCode::kInvalidArgument,
                  "reward.score: a sequence is longer than the model's max_position_embeddings = " +
                      std::to_string(config_.max_position_embeddings) +
                      "; lower data.max_length, or score with another model")
          .with("request", question.request_id);

  // Each sequence is a request of its own to the teacher. The callbacks share the open question,
  // which the last of them answers.
  const auto open = std::make_shared<OpenQuestion>();
  open->answer.request_id = question.request_id;
  open->answer.scores.resize(question.num_sequences());
  open->missing = question.num_sequences();
  Future<RewardAnswer> answer = open->promise.future();
  if (open->missing == 0) open->promise.set_value(std::move(open->answer));
  for (size_t sequence = 0; sequence < question.num_sequences(); ++sequence)
    teacher_.enqueue(request_of(question, sequence), caller)
        .on_outcome([this, open, sequence, label = question.label](Outcome<Payload> outcome) {
          if (outcome.error) return open->fail(outcome.error);
          try {
            open->put(sequence, number_of(head_, outcome.value->hidden, label));
            ++scored_;
          } catch (...) {
            open->fail(std::current_exception());
          }
        });
  return answer;
}

}  // namespace retort::roles

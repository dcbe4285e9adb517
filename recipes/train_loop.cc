#include "recipes/train_loop.h"

#include <ATen/ATen.h>

#include <chrono>
#include <cmath>
#include <deque>

#include "base/error.h"
#include "recipes/checkpoints.h"
#include "recipes/evaluate.h"

namespace retort::recipes {

void Objective::announce(int64_t, const data::BatchStream::Step&) {}
void Objective::finish_step(const StepSums&, MetricsRow&) {}

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

void all_reduce(StepSums& sums, parallel::Group& group) {
  if (group.size() == 1) return;
  at::Tensor packed = at::empty({StepSums::kFields}, at::kDouble);
  double* values = packed.mutable_data_ptr<double>();
  const auto fields = sums.fields();
  for (int i = 0; i < StepSums::kFields; ++i) values[i] = *fields[i];
  group.all_reduce(packed);
  for (int i = 0; i < StepSums::kFields; ++i) *fields[i] = values[i];
}

std::string origins(const data::MicroBatch& batch) {
  std::string text;
  for (size_t i = 0; i < batch.samples.size() && i < 8; ++i) text += (i ? ", " : "") + batch.samples[i].origin;
  if (batch.samples.size() > 8) text += ", ...";
  return text;
}

// The forward passes and backward passes of one step. Every rank votes once, after its last forward pass or its first failure, so
// that no rank enters the gradient reduction alone.
StepSums compute_gradients(roles::Trainer& trainer, parallel::World& world, const data::BatchStream::Step& batches,
                           Objective& objective) {
  StepSums sums;
  trainer.begin_step();
  const size_t count = batches.micro_batches.size();
  for (size_t i = 0; i < count; ++i) {
    const data::MicroBatch& batch = batches.micro_batches[i];
    const bool last = i + 1 == count;
    std::exception_ptr failure;
    std::string message;
    at::Tensor loss;
    try {
      loss = objective.loss_sum(trainer.decoder(), batch, i, sums);
      const double value = loss.item<double>();
      if (!std::isfinite(value))
        throw Error(ErrorCode::kInvalidArgument, "the loss is " + std::to_string(value) + " on samples " + origins(batch));
      sums.loss += value;
      sums.num_tokens += static_cast<double>(batch.tokens.num_tokens());
    } catch (const std::exception& e) {
      failure = std::current_exception();
      message = e.what();
    }
    if (failure || last) {
      try {
        parallel::agree_or_throw(world.all(), message);
      } catch (const Error&) {
        if (failure) std::rethrow_exception(failure);
        throw;
      }
    }
    trainer.backward(loss, last);
  }
  all_reduce(sums, world.dp());
  return sums;
}

MetricsRow make_row(const StepSums& sums, const roles::Trainer::Update& update, const LoopState& state, double epoch,
                    double step_time) {
  MetricsRow row{.step = state.step, .values = {}};
  row.add("epoch", epoch)
      .add("num_tokens", state.num_tokens)
      .add("loss", sums.loss / sums.count)
      .add("learning_rate", update.learning_rate)
      .add("grad_norm", update.grad_norm)
      .add("entropy", sums.entropy / sums.count)
      .add("mean_token_accuracy", sums.correct / sums.count)
      .add("step_time", step_time)
      .add("tokens_per_second", sums.num_tokens / step_time);
  return row;
}

// Steps whose batches are known but not yet computed, oldest first.
class Lookahead {
 public:
  Lookahead(data::BatchStream& stream, Objective& objective, int64_t next_step, int64_t max_steps)
      : stream_(stream), objective_(objective), next_(next_step), max_(max_steps) {}

  data::BatchStream::Step take() {
    while (next_ < max_ && static_cast<int64_t>(queue_.size()) <= objective_.lookahead()) {
      queue_.push_back(stream_.next());
      objective_.announce(++next_, queue_.back());
    }
    data::BatchStream::Step step = std::move(queue_.front());
    queue_.pop_front();
    return step;
  }

 private:
  data::BatchStream& stream_;
  Objective& objective_;
  int64_t next_, max_;
  std::deque<data::BatchStream::Step> queue_;
};

}  // namespace

TrainLoopResult run_train_loop(roles::Trainer& trainer, parallel::World& world, data::BatchStream& stream,
                               const std::vector<data::MicroBatch>& eval, Objective& objective,
                               const CheckpointStore& checkpoints, LoopState state, const TrainLoopOptions& options,
                               const TrainLoopHooks& hooks) {
  TrainLoopResult result{.step = state.step};
  Lookahead lookahead(stream, objective, state.step, options.max_steps);
  const auto emit = [&](const MetricsRow& row) {
    if (world.rank() == 0 && hooks.on_metrics) hooks.on_metrics(row);
  };
  while (state.step < options.max_steps) {
    const auto start = Clock::now();
    data::BatchStream::Step batches = lookahead.take();
    StepSums sums = compute_gradients(trainer, world, batches, objective);
    const roles::Trainer::Update update = trainer.finish_step(sums.count);
    state.step += 1;
    state.cursor = batches.after;
    state.num_tokens += static_cast<int64_t>(sums.num_tokens);
    MetricsRow row = make_row(sums, update, state, batches.epoch, seconds_since(start));
    objective.finish_step(sums, row);
    const bool done = state.step == options.max_steps;
    if (state.step % options.logging_steps == 0 || done) emit(row);
    if (!eval.empty() && (done || (options.eval_steps > 0 && state.step % options.eval_steps == 0)))
      emit(evaluation_row(state.step, evaluate(trainer.decoder(), eval, world.dp())));
    if (hooks.on_step) hooks.on_step(state.step);
    const bool stop = world.all().all_reduce(static_cast<int64_t>(hooks.stop_requested && hooks.stop_requested()),
                                             parallel::ReduceOp::kMax) != 0;
    if (stop || done || (options.save_steps > 0 && state.step % options.save_steps == 0))
      result.last_checkpoint = checkpoints.save(trainer, world, state);
    if (stop && !done) {
      result.stopped_early = true;
      break;
    }
  }
  result.step = state.step;
  if (!result.stopped_early && world.rank() == 0) link_final(checkpoints.run_folder(), state.step);
  return result;
}

}  // namespace retort::recipes

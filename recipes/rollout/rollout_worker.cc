#include "recipes/rollout/rollout_worker.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "models/generation/completion_spans.h"
#include "parallel/vote.h"
#include "recipes/rollout/draw_options.h"
#include "recipes/rollout/redraws.h"

namespace retort::recipes {
namespace {

// `sink` hears of the samples of a part of its request, which begin at `first`.
roles::SampleListener listener_of(const SampleSink& sink, size_t first) {
  if (!sink) return {};
  return [sink, first](const roles::IndexedCompletion& one) {
    sink(first + static_cast<size_t>(one.index), one.completion);
  };
}

// The task of a group is a function of the recipe's seed and the group's first sample. 53 bits,
// which every reader of JSON keeps.
uint64_t episode_seed(uint64_t seed, uint64_t first_sample) {
  constexpr uint64_t kEpisodes = 0x65706973;  // apart from the noise of tokens
  return random_bits(seed, first_sample, kEpisodes) >> 11;
}

}  // namespace

RolloutWorker::RolloutWorker(parallel::World& world, std::unique_ptr<roles::GeneratorClient> client,
                             models::Tokenizer tokenizer, Options options)
    : world_(world),
      client_(std::move(client)),
      tokenizer_(std::move(tokenizer)),
      options_(std::move(options)) {
  RETORT_CHECK(client_ || !needs_client(world_))
      << "a rank that speaks to the generators has no client";
}

PendingRollout RolloutWorker::begin(RolloutRequest request) {
  RETORT_CHECK(request.sample_ids.size() ==
               request.prompts.size() * static_cast<size_t>(request.num_generations));
  PendingRollout pending{.request = std::move(request), .weight_version = pushed_, .parts = {}};
  if (leads()) send(pending, pending.request.number);
  return pending;
}

// A dp rank's prompts are shared out over the replicas that it has for itself.
void RolloutWorker::send(PendingRollout& pending, uint64_t number) {
  const RolloutRequest& request = pending.request;
  const auto ranks = static_cast<uint64_t>(world_.dp().size());
  const auto rank = static_cast<uint64_t>(world_.dp().rank());
  const uint64_t parts =
      std::max<uint64_t>(1, static_cast<uint64_t>(client_->num_replicas()) / ranks);
  const size_t per_part = (request.prompts.size() + parts - 1) / parts;
  const auto generations = static_cast<size_t>(request.num_generations);
  // Each sending opens a sink of its own, so that what an earlier one still brings does not count.
  const SampleSink sink = request.open_sink ? request.open_sink() : SampleSink();

  // A part has neighbouring prompts, so that the answers of all parts, one after the other, are in
  // the order of the prompts.
  pending.parts.clear();
  for (size_t begin = 0, part = 0; begin < request.prompts.size(); begin += per_part, ++part) {
    const size_t end = std::min(begin + per_part, request.prompts.size());
    std::vector<int32_t> ids;
    std::vector<int32_t> ends{0};
    std::vector<roles::EpisodeStart> episodes;
    for (size_t p = begin; p < end; ++p) {
      const data::PromptSample& prompt = request.prompts[p];
      if (options_.episodes)
        episodes.push_back(
            {.seed = episode_seed(options_.seed, request.sample_ids[p * generations]),
             .row = prompt.row,
             .messages = prompt.messages});
      else
        ids.insert(ids.end(), prompt.prompt_ids.begin(), prompt.prompt_ids.end());
      ends.push_back(static_cast<int32_t>(ids.size()));
    }

    std::vector<int64_t> sample_ids(
        request.sample_ids.begin() + static_cast<ptrdiff_t>(begin * generations),
        request.sample_ids.begin() + static_cast<ptrdiff_t>(end * generations));

    // No other request, rank or part has this id.
    pending.parts.push_back(
        client_->send({.request_id = (number * ranks + rank) * parts + part,
                       .step = request.step,
                       .weight_version = pending.weight_version,
                       .prompt_ids = at::tensor(ids, at::kInt),
                       .cu_seqlens = at::tensor(ends, at::kInt),
                       .num_generations = request.num_generations,
                       .sample_ids = at::tensor(sample_ids, at::kLong),
                       .draw = draw_options(options_, tokenizer_.vocab_size(), request.greedy),
                       .episodes = std::move(episodes)},
                      listener_of(sink, begin * generations)));
  }
}

std::vector<roles::Samples> RolloutWorker::receive(PendingRollout& pending, double* waited) {
  Redraws redraws(pending.request.step);
  for (;;) {
    try {
      std::vector<roles::Samples> answers;
      for (roles::PendingSamples& part : pending.parts)
        answers.push_back(client_->receive(std::move(part), waited, pending.meanwhile));
      return answers;
    } catch (const Error& error) {
      // The samples were given up for new weights (in_flight: abort), or lost with a generator
      // whose successor has newer ones.
      if (error.code() != ErrorCode::kCancelled) throw;
      std::this_thread::sleep_for(
          redraws.pause_after(error, /*newer=*/pending.weight_version != pushed_));
      draw_again(pending, error);
    }
  }
}

// The other parts run to their end, or to the same error, and nobody waits for them: cancelled
// between two answers they would stay with their generators.
void RolloutWorker::draw_again(PendingRollout& pending, const Error& why) {
  RETORT_LOG(kInfo) << "step " << pending.request.step
                    << ": samples are drawn again, with weights of version " << pushed_ << ": "
                    << why.what();
  pending.weight_version = pushed_;
  send(pending, (uint64_t{1} << 40) + resent_++);
}

Rollout RolloutWorker::finish(PendingRollout pending) {
  Rollout rollout;
  std::vector<roles::Samples> answers;
  // One rank waits for the generators. The vote tells the others of this dp rank if that fails,
  // before they wait in the collectives that share the samples.
  parallel::run_on_all(world_.mp(), [&] {
    if (leads()) answers = receive(pending, &rollout.wait_seconds);
  });

  // Every rank of this dp rank gets what the first one received.
  answers = roles::share_samples(world_.mp(), std::move(answers));
  // The version they were drawn with: a request that was sent again has a later one.
  rollout.weight_version =
      answers.empty() ? pending.weight_version : answers.front().weight_version;

  // Answers are in the order of prompts, each with its samples in a row.
  RolloutRequest& request = pending.request;
  const auto generations = static_cast<size_t>(request.num_generations);
  size_t prompt = 0;
  for (const roles::Samples& answer : answers) {
    rollout.generation_seconds = std::max(rollout.generation_seconds, answer.seconds);
    std::vector<roles::IndexedCompletion> drawn = roles::unpack_completions(answer);
    for (size_t i = 0; i < drawn.size(); i += generations, ++prompt) {
      RolloutGroup group{.prompt = std::move(request.prompts[prompt]), .samples = {}};
      for (size_t g = 0; g < generations; ++g) {
        RolloutSample sample = sample_of(std::move(drawn[i + g].completion));
        sample.sample_id = request.sample_ids[prompt * generations + g];
        sample.weight_version = answer.weight_version;
        if (is_episode(sample))
          sample.prompt_text = tokenizer_.decode(sample.prompt_ids, /*skip_special_tokens=*/false);
        sample.text = models::completion_text(tokenizer_, models::last_turn(sample.completion),
                                              sample.completion.finish_reason, options_.stops);
        group.samples.push_back(std::move(sample));
      }
      rollout.groups.push_back(std::move(group));
    }
  }
  return rollout;
}

void RolloutWorker::sync(const models::Decoder& student, uint64_t version,
                         const std::vector<PendingRollout*>& in_flight) {
  if (version == pushed_) return;
  const int64_t bucket_bytes = options_.sync.bucket_bytes.bytes;
  const bool sends = world_.coordinate().dp == 0;

  // Nobody's request may reach a generator after the weights that it does not want, nor a part of
  // these weights before the last are in use.
  parallel::run_on_all(world_.all(), [&] {
    for (PendingRollout* pending : in_flight)
      for (roles::PendingSamples& part : pending->parts)
        client_->wait_accepted(part);
    wait_synced();
  });
  const roles::SentWeights sent = parallel::run_on_all(world_.all(), [&] {
    return sends ? client_->send_weights(student, version, bucket_bytes, world_.mp().rank())
                 : roles::SentWeights{};
  });

  // The commit names what every sender has sent.
  if (sends) {
    const std::vector<roles::SentWeights> all = roles::gather_sent(world_.mp(), sent);
    if (world_.rank() == 0) {
      push_ = client_->commit(version, all, options_.sync.in_flight == InFlight::kAbort);
      push_seconds_ = push_->seconds;
    }
  }
  pushed_ = version;
}

// Waits until the weights that were pushed last are in use everywhere.
void RolloutWorker::wait_synced() {
  if (!push_) return;
  roles::PendingPush push = std::move(*push_);
  push_.reset();
  client_->wait_pushed(std::move(push));
}

}  // namespace retort::recipes

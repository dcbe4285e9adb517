#include "recipes/rollout/rollout.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/json_text.h"
#include "base/log.h"
#include "parallel/vote.h"
#include "recipes/rollout/draw_options.h"

namespace retort::recipes {
namespace {

models::Completion completion_at(const roles::Samples& samples, int64_t index) {
  const int32_t* ends = samples.cu_seqlens.const_data_ptr<int32_t>();
  const int32_t begin = ends[index], end = ends[index + 1];
  models::Completion completion;
  const auto copy = [&](const auto* from, auto& to) { to.assign(from + begin, from + end); };
  copy(samples.token_ids.const_data_ptr<int32_t>(), completion.token_ids);
  copy(samples.logps.const_data_ptr<float>(), completion.logps);
  copy(samples.sampling_logps.const_data_ptr<float>(), completion.sampling_logps);
  completion.finish_reason =
      static_cast<models::FinishReason>(samples.finish_reasons.const_data_ptr<uint8_t>()[index]);
  return completion;
}

// The first rank's scores on every rank of the group: of each sample whether there is one, and
// which; total, then components.
void share_scores(const std::vector<RolloutSample*>& samples, size_t components,
                  parallel::Group& group) {
  const auto rows = static_cast<int64_t>(samples.size()),
             columns = static_cast<int64_t>(1 + components);
  at::Tensor table = at::zeros({rows, columns, 2}, at::kDouble);
  const bool first = group.rank() == 0;
  const auto each = [&](const auto& visit) {
    double* entry = table.mutable_data_ptr<double>();
    for (RolloutSample* sample : samples) {
      sample->components.resize(components);
      for (size_t c = 0; c <= components; ++c, entry += 2)
        visit(c == 0 ? sample->reward : sample->components[c - 1], entry);
    }
  };
  if (first)
    each([](const std::optional<double>& score, double* entry) {
      entry[0] = score.has_value() ? 1 : 0;
      entry[1] = score.value_or(0);
    });
  group.broadcast(table, 0);
  if (!first)
    each([](std::optional<double>& score, const double* entry) {
      if (entry[0] != 0) score = entry[1];
    });
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

RolloutWorker::Pending RolloutWorker::begin(int64_t step, uint64_t request,
                                            std::vector<data::PromptSample> prompts,
                                            std::vector<uint64_t> sample_ids, bool greedy) {
  Pending pending{.prompts = std::move(prompts),
                  .num_generations = greedy ? 1 : options_.generation.num_generations,
                  .sample_ids = std::move(sample_ids),
                  .weight_version = pushed_,
                  .step = step,
                  .parts = {},
                  .greedy = greedy};
  RETORT_CHECK(pending.sample_ids.size() ==
               pending.prompts.size() * static_cast<size_t>(pending.num_generations));
  if (leads()) send(pending, request);
  return pending;
}

// A dp rank's prompts are shared out over the replicas that it has for itself.
void RolloutWorker::send(Pending& pending, uint64_t request) {
  const auto ranks = static_cast<uint64_t>(world_.dp().size());
  const auto rank = static_cast<uint64_t>(world_.dp().rank());
  const uint64_t parts =
      std::max<uint64_t>(1, static_cast<uint64_t>(client_->num_replicas()) / ranks);
  const size_t per_part = (pending.prompts.size() + parts - 1) / parts;
  const auto generations = static_cast<size_t>(pending.num_generations);

  pending.parts.clear();
  for (size_t begin = 0, part = 0; begin < pending.prompts.size(); begin += per_part, ++part) {
    const size_t end = std::min(begin + per_part, pending.prompts.size());
    std::vector<int32_t> ids;
    std::vector<int32_t> ends{0};
    for (size_t p = begin; p < end; ++p) {
      ids.insert(ids.end(), pending.prompts[p].prompt_ids.begin(),
                 pending.prompts[p].prompt_ids.end());
      ends.push_back(static_cast<int32_t>(ids.size()));
    }

    std::vector<int64_t> sample_ids(
        pending.sample_ids.begin() + static_cast<ptrdiff_t>(begin * generations),
        pending.sample_ids.begin() + static_cast<ptrdiff_t>(end * generations));

    pending.parts.push_back(
        client_->send({.request_id = (request * ranks + rank) * parts + part,
                       .step = pending.step,
                       .weight_version = pending.weight_version,
                       .prompt_ids = at::tensor(ids, at::kInt),
                       .cu_seqlens = at::tensor(ends, at::kInt),
                       .num_generations = pending.num_generations,
                       .sample_ids = at::tensor(sample_ids, at::kLong),
                       .draw = draw_options(options_, tokenizer_.vocab_size(), pending.greedy)}));
  }
}

std::vector<roles::Samples> RolloutWorker::receive(Pending& pending, double* waited) {
  for (;;) {
    try {
      std::vector<roles::Samples> answers;
      for (roles::PendingSamples& part : pending.parts)
        answers.push_back(client_->receive(std::move(part), waited));
      return answers;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCancelled || options_.sync.in_flight != InFlight::kAbort)
        throw;
      for (roles::PendingSamples& part : pending.parts) {
        if (part.reply.valid()) part.reply.cancel();
      }
      RETORT_LOG(kInfo) << "step " << pending.step
                        << ": samples were given up for weights of version " << pushed_
                        << " and are drawn again";
      pending.weight_version = pushed_;
      send(pending, (uint64_t{1} << 40) + resent_++);
    }
  }
}

Rollout RolloutWorker::finish(Pending pending) {
  Rollout rollout;
  std::vector<roles::Samples> answers;
  parallel::run_on_all(world_.mp(), [&] {
    if (leads()) answers = receive(pending, &rollout.wait_seconds);
  });

  // Every rank of this dp rank gets what the first one received.
  answers = roles::share_samples(world_.mp(), std::move(answers));
  // The version they were drawn with: a request that was sent again has a later one.
  rollout.weight_version =
      answers.empty() ? pending.weight_version : answers.front().weight_version;

  // Answers are in the order of prompts, each with its samples in a row.
  size_t prompt = 0;
  for (const roles::Samples& answer : answers) {
    rollout.generation_seconds = std::max(rollout.generation_seconds, answer.seconds);
    for (int64_t i = 0; i < answer.finish_reasons.numel(); i += pending.num_generations, ++prompt) {
      RolloutGroup group{.prompt = std::move(pending.prompts[prompt]), .samples = {}};
      for (int64_t g = 0; g < pending.num_generations; ++g) {
        RolloutSample sample{
            .completion = completion_at(answer, i + g),
            .sample_id = pending.sample_ids[prompt * static_cast<size_t>(pending.num_generations) +
                                            static_cast<size_t>(g)],
            .weight_version = answer.weight_version};
        sample.text = tokenizer_.decode(sample.completion.token_ids, /*skip_special_tokens=*/true);
        group.samples.push_back(std::move(sample));
      }
      rollout.groups.push_back(std::move(group));
    }
  }
  return rollout;
}

void RolloutWorker::score(Rollout& rollout, rewards::RewardSet& rewards) const {
  std::vector<rewards::RewardInput> inputs;
  std::vector<RolloutSample*> samples;
  for (RolloutGroup& group : rollout.groups)
    for (RolloutSample& sample : group.samples) {
      samples.push_back(&sample);
      inputs.push_back(
          {.prompt = group.prompt.prompt_text,
           .completion = sample.text,
           .reference = group.prompt.reference,
           .num_tokens = static_cast<int64_t>(sample.completion.token_ids.size()),
           .truncated = sample.completion.finish_reason == models::FinishReason::kLength,
           .fields = group.prompt.fields,
           .origin = group.prompt.origin});
    }
  if (inputs.empty()) return;
  parallel::run_on_all(world_.mp(), [&] {
    if (!leads()) return;
    std::vector<rewards::Scored> scores = rewards.score(inputs);
    RETORT_CHECK(scores.size() == inputs.size());
    for (size_t i = 0; i < samples.size(); ++i) {
      samples[i]->reward = scores[i].total;
      samples[i]->components = std::move(scores[i].components);
    }
  });
  if (world_.mp().size() > 1) share_scores(samples, rewards.names().size(), world_.mp());
}

void RolloutWorker::save(const Rollout& rollout, int64_t step,
                         const std::vector<std::string>& reward_names) const {
  if (!options_.generation.save_samples || !leads()) return;
  const std::string name =
      "step-" + std::to_string(step) + "-rank-" + std::to_string(world_.dp().rank()) + ".jsonl";
  write_samples(options_.run_folder / "samples" / name, rollout, reward_names);
}

void RolloutWorker::sync(const models::Decoder& student, uint64_t version,
                         std::vector<Pending*> in_flight) {
  if (version == pushed_) return;
  const int64_t bucket_bytes = options_.sync.bucket_bytes.bytes;
  const bool sends = world_.coordinate().dp == 0;
  // Nobody's request may reach a generator after the weights that it does not want, nor a part of
  // these weights before the last are in use.
  parallel::run_on_all(world_.all(), [&] {
    for (Pending* pending : in_flight)
      for (roles::PendingSamples& part : pending->parts)
        client_->wait_accepted(part);
    wait_synced();
  });
  const roles::SentWeights sent = parallel::run_on_all(world_.all(), [&] {
    return sends ? client_->send_weights(student, version, bucket_bytes, world_.mp().rank())
                 : roles::SentWeights{};
  });
  if (sends) {
    const std::vector<roles::SentWeights> all = roles::gather_sent(world_.mp(), sent);
    if (world_.rank() == 0) {
      push_ = client_->commit(version, all, options_.sync.in_flight == InFlight::kAbort);
      push_seconds_ = push_->seconds;
    }
  }
  pushed_ = version;
}

void RolloutWorker::wait_synced() {
  if (!push_) return;
  roles::PendingPush push = std::move(*push_);
  push_.reset();
  client_->wait_pushed(std::move(push));
}

namespace {

// One line of write_samples.
std::string sample_line(const RolloutGroup& group, const RolloutSample& sample,
                        const std::vector<std::string>& names) {
  const auto list = [](const auto& values, auto format) {
    std::string text = "[";
    for (size_t i = 0; i < values.size(); ++i)
      text += (i ? ", " : "") + format(values[i]);
    return text + "]";
  };
  const auto number = [](const std::optional<double>& value) {
    return value ? json_number(*value) : std::string("null");
  };
  const auto decimal = [](float value) { return json_number(value); };
  const auto integer = [](int32_t id) { return std::to_string(id); };

  JsonLine components;
  for (size_t i = 0; i < names.size() && i < sample.components.size(); ++i)
    components.raw(names[i], number(sample.components[i]));

  return JsonLine()
      .add("prompt", std::string_view(group.prompt.prompt_text))
      .add("completion", std::string_view(sample.text))
      .raw("prompt_ids", list(group.prompt.prompt_ids, integer))
      .raw("token_ids", list(sample.completion.token_ids, integer))
      .raw("logps", list(sample.completion.logps, decimal))
      .raw("sampling_logps", list(sample.completion.sampling_logps, decimal))
      .raw("reward", number(sample.reward))
      .raw("rewards", components.str())
      .add("finish_reason", enum_name(sample.completion.finish_reason))
      .add("sample_id", static_cast<int64_t>(sample.sample_id))
      .add("weight_version", static_cast<int64_t>(sample.weight_version))
      .add("origin", std::string_view(group.prompt.origin))
      .str();
}

}  // namespace

void write_samples(const std::filesystem::path& file, const Rollout& rollout,
                   const std::vector<std::string>& names) {
  std::string text;
  for (const RolloutGroup& group : rollout.groups)
    for (const RolloutSample& sample : group.samples)
      text += sample_line(group, sample, names) + "\n";
  std::filesystem::create_directories(file.parent_path());
  write_file_atomically(file, text);
}

data::Sample to_sample(const data::PromptSample& prompt, const std::vector<int32_t>& completion) {
  data::Sample sample{.input_ids = prompt.prompt_ids,
                      .is_target = std::vector<uint8_t>(prompt.prompt_ids.size(), 0)};
  sample.input_ids.insert(sample.input_ids.end(), completion.begin(), completion.end());
  sample.is_target.resize(sample.input_ids.size(), 1);
  sample.origin = prompt.origin;
  sample.fields = prompt.fields;
  return sample;
}

}  // namespace retort::recipes

#include "recipes/rejection_sampling/sampler.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "base/hash.h"
#include "base/json_text.h"
#include "base/log.h"
#include "models/generation/completion_spans.h"
#include "parallel/vote.h"
#include "recipes/rejection_sampling/round_files.h"
#include "recipes/rollout/lost_round.h"
#include "recipes/rollout/sample_files.h"

namespace retort::recipes {
namespace fs = std::filesystem;
namespace {

// Returns the texts of all ranks, in rank order. Collectives: two all-gathers on dp.
std::string gather_text(const std::string& mine, parallel::Group& dp) {
  std::string all;
  for (const std::string& text : dp.all_gather(mine))
    all += text;
  return all;
}

// Equal rows have equal hashes: the same tokens, behind the same prompt, said by the same.
std::string row_hash(const data::Sample& row) {
  const std::vector<int32_t>& ids = row.input_ids;
  std::string bytes(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(ids[0]));
  bytes.append(row.is_target.begin(), row.is_target.end());
  return sha256_hex(bytes).substr(0, 16);
}

bool is_truncated(const RolloutSample& sample) {
  return sample.completion.finish_reason == models::FinishReason::kLength;
}

Error nothing_kept(int64_t round, size_t scorable, int64_t unscorable, int64_t left_out) {
  const std::string cut = left_out == 0 ? ""
                                        : ", " + std::to_string(left_out) +
                                              " that were cut off (keep_truncated: false)";
  return Error(ErrorCode::kInvalidArgument,
               "round " + std::to_string(round) + " of rejection sampling kept none of " +
                   std::to_string(scorable) + " scorable samples (" + std::to_string(unscorable) +
                   " unscorable" + cut +
                   "); lower the threshold, draw more, or start from a better model");
}

}  // namespace

RejectionSampler::RejectionSampler(parallel::World& world, const roles::Trainer& trainer,
                                   std::shared_ptr<const data::PromptDataset> prompts,
                                   std::unique_ptr<data::IndexStream> order,
                                   std::shared_ptr<SampleSource> samples,
                                   std::shared_ptr<RolloutScorer> scorer, OpenKept open,
                                   Options options)
    : world_(world),
      trainer_(trainer),
      prompts_(std::move(prompts)),
      order_(std::move(order)),
      samples_(std::move(samples)),
      scorer_(std::move(scorer)),
      open_(std::move(open)),
      options_(std::move(options)) {}

// Returns this rank's prompts of a round. Rounds that another process drew are passed over, so that
// the order of prompts is that of one uninterrupted run.
DealtPrompts RejectionSampler::deal_round(int64_t round) {
  const int64_t wanted = options_.rejection.prompts_per_round > 0
                             ? options_.rejection.prompts_per_round
                             : order_->rows_per_epoch();
  DealtPrompts dealt;
  for (; rounds_drawn_ <= round; ++rounds_drawn_) {
    for (int64_t taken = 0; taken < wanted;) {
      const data::IndexStream::Step rows = order_->next(wanted - taken);
      if (rounds_drawn_ == round)
        deal(*prompts_, rows, taken, options_.num_generations, world_.dp(), dealt);
      taken += static_cast<int64_t>(rows.rows.size());
    }
  }
  return dealt;
}

// Draws and scores the completions of this rank's prompts of a round.
Rollout RejectionSampler::draw(int64_t round, int64_t step) {
  DealtPrompts dealt = deal_round(round);
  samples_->sync(trainer_.decoder(), static_cast<uint64_t>(step), {});
  PendingRollout pending = scorer_->begin(*samples_, {.step = step,
                                                      .number = static_cast<uint64_t>(round),
                                                      .prompts = std::move(dealt.prompts),
                                                      .num_generations = options_.num_generations,
                                                      .sample_ids = std::move(dealt.sample_ids)});
  Rollout rollout = scorer_->finish(*samples_, std::move(pending), world_.mp());
  save_samples(sample_files_, options_.samples_folder, world_, rollout, step, scorer_->names());
  return rollout;
}

// Each scorable sample travels as a line of numbers and a line of text. Collectives on dp: four
// all-gathers, and an all-reduce.
RejectionSampler::Drawn RejectionSampler::gather(const Rollout& rollout, int64_t round) const {
  parallel::Group& dp = world_.dp();
  std::string numbers;
  std::string lines;
  int64_t unscorable = 0;
  for (size_t g = 0; g < rollout.groups.size(); ++g) {
    const int64_t prompt = static_cast<int64_t>(g) * dp.size() + dp.rank();
    for (const RolloutSample& sample : rollout.groups[g].samples) {
      if (!sample.reward || models::num_model_tokens(sample.completion) == 0) {
        ++unscorable;
        continue;
      }
      const data::Sample row = training_row(rollout.groups[g].prompt, sample);
      numbers += std::to_string(prompt) + " " + json_number(*sample.reward) + " " +
                 std::to_string(sample.sample_id) + " " + row_hash(row) +
                 (is_truncated(sample) ? " 1" : " 0") + "\n";
      lines += kept_line(row, rollout.groups[g], sample, round, options_.seed) + "\n";
    }
  }

  // Every rank reads the same text in rank order, so that line i of the one belongs to line i of
  // the other.
  Drawn drawn;
  std::istringstream all_numbers(gather_text(numbers, dp));
  for (Candidate c;
       all_numbers >> c.prompt >> c.reward >> c.sample_id >> c.row_hash >> c.truncated;)
    drawn.candidates.push_back(c);
  std::istringstream all_lines(gather_text(lines, dp));
  for (std::string line; std::getline(all_lines, line);)
    drawn.lines.push_back(line);
  drawn.unscorable = dp.all_reduce(unscorable);
  RETORT_CHECK(drawn.candidates.size() == drawn.lines.size());
  return drawn;
}

void RejectionSampler::draw_round(int64_t round, int64_t step, const fs::path& file) {
  const Rollout rollout = parallel::run_on_all(world_.all(), [&] { return draw(round, step); });

  // Every rank selects from all candidates, so that all keep the same without a message.
  const Drawn drawn = gather(rollout, round);
  const std::vector<Candidate>& candidates = drawn.candidates;
  const std::vector<size_t> kept = select(candidates, options_.rejection);
  const auto truncated = std::ranges::count_if(candidates, &Candidate::truncated);
  // All ranks have the same candidates, so all of them throw these, without a vote.
  if (candidates.empty() && options_.episodes)
    refuse_lost_round(rollout, drawn.unscorable, "can be scored");
  if (kept.empty())
    throw nothing_kept(round, candidates.size(), drawn.unscorable,
                       options_.rejection.keep_truncated ? 0 : truncated);

  double drawn_reward = 0;
  double kept_reward = 0;
  std::vector<std::string> kept_lines;
  for (const Candidate& candidate : candidates)
    drawn_reward += candidate.reward;
  for (const size_t i : kept) {
    kept_reward += candidates[i].reward;
    kept_lines.push_back(drawn.lines[i]);
  }
  const double mean_reward = drawn_reward / static_cast<double>(candidates.size());

  metrics_ = MetricsRow{.step = step, .values = {}};
  metrics_.add("round", round)
      .add("reward", mean_reward)
      .add("reward_kept", kept_reward / static_cast<double>(kept.size()))
      .add("num_samples", static_cast<int64_t>(candidates.size()))
      .add("num_kept", static_cast<int64_t>(kept.size()))
      .add("num_unscorable", drawn.unscorable)
      .add("num_samples_truncated", static_cast<int64_t>(truncated))
      .add("weight_version", static_cast<int64_t>(rollout.weight_version))
      .add("generation_time", rollout.generation_seconds);
  if (options_.episodes) add_episodes(rollout);

  // Every rank opens the file behind this vote, so it is complete by then.
  parallel::run_on_all(world_.all(), [&] {
    if (world_.rank() == 0) write_round(file, kept_lines, metrics_);
  });

  // All ranks know the same of it, so one of them says it.
  if (world_.rank() != 0) return;
  RETORT_LOG(kInfo) << "round " << round << ": " << candidates.size() << " samples, mean reward "
                    << mean_reward << ", " << kept.size() << " kept in " << file.string();
}

void RejectionSampler::add_episodes(const Rollout& rollout) {
  const double other_prompts = add_episode_metrics(rollout, world_.dp(), metrics_);
  // The best of all prompts, or all above a threshold, are not compared within a group.
  const bool compares = options_.rejection.select == Select::kBestOfN;
  if (compares && world_.rank() == 0) other_prompts_.tell(other_prompts);
}

data::BatchStream::Step RejectionSampler::step(int64_t step, const data::Cursor& resumed) {
  const int64_t round = (step - 1) / options_.steps_per_round;
  if (round == round_) return stream_->next();

  // A round is drawn by all ranks or by none, whoever looked first: it is there only if all of them
  // see it.
  const fs::path file = kept_file(options_.run_folder, round);
  const auto mine = static_cast<int64_t>(fs::exists(file));
  const int64_t there = world_.all().all_reduce(mine, parallel::ReduceOp::kMin);
  if (there == 0)
    draw_round(round, step, file);
  else
    metrics_ = read_round_metrics(file);

  // In the middle of a round the loop's cursor is a place in this file. At its start the cursor
  // belongs to the file of the round before.
  const bool middle = (step - 1) % options_.steps_per_round != 0;
  stream_ = open_(file, middle ? resumed : data::Cursor{});
  round_ = round;
  return stream_->next();
}

}  // namespace retort::recipes

#include "recipes/rejection_sampling/sampler.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <tuple>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json_text.h"
#include "base/log.h"
#include "recipes/run/together.h"

namespace retort::recipes {
namespace fs = std::filesystem;
namespace {

template <class Values>
std::string json_list(const Values& values) {
  std::string text = "[";
  for (size_t i = 0; i < values.size(); ++i)
    text += (i ? ", " : "") + std::to_string(values[i]);
  return text + "]";
}

// One row of the kept file; the rows that a Dataset reads as input_ids with labels.
std::string kept_line(const RolloutGroup& group, const RolloutSample& sample, int64_t round,
                      uint64_t seed) {
  std::vector<int32_t> ids = group.prompt.prompt_ids, labels(ids.size(), -100);
  const auto& completion = sample.completion.token_ids;
  ids.insert(ids.end(), completion.begin(), completion.end());
  labels.insert(labels.end(), completion.begin(), completion.end());
  return JsonLine()
      .raw("input_ids", json_list(ids))
      .raw("labels", json_list(labels))
      .add("prompt", std::string_view(group.prompt.prompt_text))
      .add("completion", std::string_view(sample.text))
      .add("reward", *sample.reward)
      .add("round", round)
      .add("sample_id", static_cast<int64_t>(sample.sample_id))
      .add("seed", static_cast<int64_t>(seed))
      .add("weight_version", static_cast<int64_t>(sample.weight_version))
      .add("origin", std::string_view(group.prompt.origin))
      .str();
}

fs::path metrics_file(fs::path kept) { return kept.replace_extension(".metrics"); }

// A line for each number, "name value": a resumed run must show the numbers of a round that it does
// not draw again.
void write_round_metrics(const fs::path& file, const MetricsRow& row) {
  std::string text;
  for (const auto& [name, value] : row.values)
    text +=
        name + " " +
        std::visit([](auto number) { return json_number(static_cast<double>(number)); }, value) +
        "\n";
  write_file_atomically(file, text);
}

MetricsRow read_round_metrics(const fs::path& file) {
  MetricsRow row;
  if (!fs::exists(file)) return row;
  std::istringstream in(read_file(file));
  double value = 0;
  for (std::string name; in >> name >> value;)
    row.add(name, value);
  return row;
}

// Everything of every rank, in rank order. Collective over dp: one all-reduce and one broadcast of
// each rank's text.
std::vector<std::string> gather_texts(const std::string& mine, parallel::Group& dp) {
  std::vector<std::string> all;
  for (int rank = 0; rank < dp.size(); ++rank)
    all.push_back(dp.size() == 1 ? mine : dp.broadcast(mine, rank));
  return all;
}

}  // namespace

std::vector<size_t> select(const std::vector<Candidate>& candidates,
                           const RejectionSamplingOptions& options) {
  std::vector<size_t> order(candidates.size());
  for (size_t i = 0; i < order.size(); ++i)
    order[i] = i;
  const auto better = [&](size_t a, size_t b) {
    const Candidate &x = candidates[a], &y = candidates[b];
    return std::tuple(-x.reward, x.prompt, x.sample_id) <
           std::tuple(-y.reward, y.prompt, y.sample_id);
  };
  std::sort(order.begin(), order.end(), better);
  if (options.deduplicate) {
    std::set<std::pair<int64_t, std::string>> seen;
    std::erase_if(order, [&](size_t i) {
      return !seen.emplace(candidates[i].prompt, candidates[i].text_hash).second;
    });
  }
  if (options.threshold)
    std::erase_if(order, [&](size_t i) { return candidates[i].reward < *options.threshold; });
  if (options.select == Select::kBestOfN) {
    std::map<int64_t, int64_t> kept;
    std::erase_if(order, [&](size_t i) { return ++kept[candidates[i].prompt] > options.top_n; });
  }
  if (options.select == Select::kTopFraction)  // of all that were drawn, duplicates included
    order.resize(std::min(
        order.size(),
        static_cast<size_t>(*options.top_fraction * static_cast<double>(candidates.size()))));
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return candidates[a].prompt < candidates[b].prompt; });
  return order;
}

RejectionSampler::RejectionSampler(parallel::World& world, const roles::Trainer& trainer,
                                   std::shared_ptr<const data::PromptDataset> prompts,
                                   std::unique_ptr<data::IndexStream> order,
                                   std::shared_ptr<RolloutWorker> worker,
                                   std::shared_ptr<rewards::RewardSet> rewards, OpenKept open,
                                   Options options)
    : world_(world),
      trainer_(trainer),
      prompts_(std::move(prompts)),
      order_(std::move(order)),
      worker_(std::move(worker)),
      rewards_(std::move(rewards)),
      open_(std::move(open)),
      options_(std::move(options)) {}

// The completions of this rank's prompts of a round. Prompt i of the round is on rank i mod dp.
Rollout RejectionSampler::draw(int64_t round, int64_t step, int64_t* num_prompts) {
  const int64_t wanted = options_.rejection.prompts_per_round > 0
                             ? options_.rejection.prompts_per_round
                             : order_->rows_per_epoch();
  std::vector<data::PromptSample> mine;
  std::vector<uint64_t> sample_ids;
  const auto generations = static_cast<uint64_t>(worker_->options().generation.num_generations);
  // Rounds that another process drew are passed over: the order of prompts is that of one
  // uninterrupted run.
  for (; rounds_drawn_ <= round; ++rounds_drawn_) {
    for (int64_t taken = 0; taken < wanted;) {
      const data::IndexStream::Step rows = order_->next(wanted - taken);
      const auto first = static_cast<uint64_t>(rows.after.total_rows) - rows.rows.size();
      for (size_t i = 0; i < rows.rows.size(); ++i, ++taken) {
        if (rounds_drawn_ < round || taken % world_.dp().size() != world_.dp().rank()) continue;
        mine.push_back(prompts_->get(rows.rows[i]).value());
        for (uint64_t g = 0; g < generations; ++g)
          sample_ids.push_back((first + i) * generations + g);
      }
    }
  }
  *num_prompts = wanted;
  worker_->sync(trainer_.decoder(), static_cast<uint64_t>(step), {});
  Rollout rollout = worker_->finish(
      worker_->begin(step, static_cast<uint64_t>(round), std::move(mine), std::move(sample_ids)));
  worker_->score(rollout, *rewards_);
  worker_->save(rollout, step, rewards_->names());
  return rollout;
}

void RejectionSampler::draw_round(int64_t round, int64_t step, const fs::path& file) {
  Rollout rollout;
  int64_t num_prompts = 0;
  together(world_.all(), [&] { rollout = draw(round, step, &num_prompts); });
  // A line of numbers and a line of text for each scorable sample; every rank selects from all of
  // them.
  std::string numbers, lines;
  int64_t unscorable = 0;
  for (size_t g = 0; g < rollout.groups.size(); ++g) {
    const int64_t prompt = static_cast<int64_t>(g) * world_.dp().size() + world_.dp().rank();
    for (const RolloutSample& sample : rollout.groups[g].samples) {
      if (!sample.reward || sample.completion.token_ids.empty()) {
        ++unscorable;
        continue;
      }
      const auto& ids = sample.completion.token_ids;
      const std::string hash =
          sha256_hex({reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(ids[0])})
              .substr(0, 16);
      numbers += std::to_string(prompt) + " " + json_number(*sample.reward) + " " +
                 std::to_string(sample.sample_id) + " " + hash + "\n";
      lines += kept_line(rollout.groups[g], sample, round, options_.seed) + "\n";
    }
  }
  std::vector<Candidate> candidates;
  for (const std::string& text : gather_texts(numbers, world_.dp())) {
    std::istringstream in(text);
    for (Candidate c; in >> c.prompt >> c.reward >> c.sample_id >> c.text_hash;)
      candidates.push_back(c);
  }
  std::vector<std::string> all_lines;
  for (const std::string& text : gather_texts(lines, world_.dp())) {
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);)
      all_lines.push_back(line);
  }
  unscorable = world_.dp().all_reduce(unscorable);
  RETORT_CHECK(candidates.size() == all_lines.size());
  const std::vector<size_t> kept = select(candidates, options_.rejection);
  double drawn_reward = 0, kept_reward = 0;
  for (const Candidate& candidate : candidates)
    drawn_reward += candidate.reward;
  std::string text;
  for (const size_t i : kept) {
    kept_reward += candidates[i].reward;
    text += all_lines[i] + "\n";
  }
  if (kept.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "round " + std::to_string(round) + " of rejection sampling kept none of " +
                    std::to_string(candidates.size()) + " scorable samples (" +
                    std::to_string(unscorable) +
                    " unscorable); lower the threshold, draw more, or start from a better model");
  const double drawn = std::max<double>(1, static_cast<double>(candidates.size()));
  metrics_ = MetricsRow{.step = step, .values = {}};
  metrics_.add("round", round)
      .add("reward", drawn_reward / drawn)
      .add("reward_kept", kept_reward / static_cast<double>(kept.size()))
      .add("num_samples", static_cast<int64_t>(candidates.size()))
      .add("num_kept", static_cast<int64_t>(kept.size()))
      .add("num_unscorable", unscorable)
      .add("weight_version", static_cast<int64_t>(rollout.weight_version))
      .add("generation_time", rollout.generation_seconds);
  together(world_.all(), [&] {
    if (world_.rank() != 0) return;
    fs::create_directories(file.parent_path());
    // first: rows without their numbers are never found
    write_round_metrics(metrics_file(file), metrics_);
    write_file_atomically(file, text);
  });
  RETORT_LOG(kInfo) << "round " << round << ": " << candidates.size() << " samples of "
                    << num_prompts << " prompts, mean reward " << drawn_reward / drawn << ", "
                    << kept.size() << " kept in " << file.string();
}

data::BatchStream::Step RejectionSampler::step(int64_t step, const data::BatchCursor& resumed) {
  const int64_t round = (step - 1) / options_.steps_per_round;
  if (round != round_) {
    const fs::path file =
        options_.run_folder / "kept" / ("round-" + std::to_string(round) + ".jsonl");
    // Every rank must see the same, whoever looks first.
    const int64_t there =
        world_.all().all_reduce(static_cast<int64_t>(fs::exists(file)), parallel::ReduceOp::kMin);
    if (there == 0)
      draw_round(round, step, file);
    else
      metrics_ = read_round_metrics(metrics_file(file));
    // In the middle of a round the loop's cursor is a place in this file; at its start it belongs
    // to the one before.
    const bool middle = (step - 1) % options_.steps_per_round != 0;
    stream_ = open_(file, middle ? resumed : data::BatchCursor{});
    round_ = round;
  }
  return stream_->next();
}

}  // namespace retort::recipes

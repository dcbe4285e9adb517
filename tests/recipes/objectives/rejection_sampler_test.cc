// Rounds of rejection sampling in one process: what is asked for, what is kept, what a resumed run
// does.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <string>
#include <variant>

#include "base/file.h"
#include "models/generation/completion_spans.h"
#include "recipes/data/dataset.h"
#include "recipes/rejection_sampling/round_files.h"
#include "recipes/rejection_sampling/sampler.h"
#include "tests/recipes/rollout/fake_sample_source.h"
#include "tests/recipes/rollout/played_episodes.h"
#include "tests/recipes/rollout/prompt_files.h"
#include "tests/roles/nano_model.h"
#include "tests/support/thrown.h"

namespace retort::recipes {
namespace {

namespace fs = std::filesystem;
using Asked = test::FakeSampleSource::Asked;
using SampleIds = std::vector<uint64_t>;

// Samples 2 and 3 say the same.
models::Completion answer(const data::PromptSample&, uint64_t sample_id, uint64_t) {
  return test::numbered_answer(sample_id == 3 ? 2 : sample_id);
}

class RejectionSamplerTest : public ::testing::Test {
 protected:
  static constexpr int64_t kGenerations = 4;
  static constexpr int64_t kStepsPerRound = 2;

  // One process of a run in a folder of its own.
  struct Process {
    std::shared_ptr<test::FakeSampleSource> samples;
    std::unique_ptr<RejectionSampler> sampler;
  };
  Process start(const std::string& run, const RejectionSamplingOptions& options = {},
                test::FakeSampleSource::Answer answers = answer, bool episodes = false) {
    Process process;
    process.samples =
        std::make_shared<test::FakeSampleSource>(files_.tokenizer(), std::move(answers));
    RejectionSamplingOptions rejection = options;
    rejection.prompts_per_round = 2;
    process.sampler = std::make_unique<RejectionSampler>(
        world_, trainer_, files_.prompts(), files_.order(), process.samples,
        std::make_shared<RolloutScorer>(
            std::make_shared<rewards::RewardSet>(test::length_rewards()), files_.tokenizer()),
        [this](const fs::path& file, data::Cursor cursor) { return open(file, cursor); },
        RejectionSampler::Options{.rejection = rejection,
                                  .num_generations = kGenerations,
                                  .steps_per_round = kStepsPerRound,
                                  .episodes = episodes,
                                  .seed = 3,
                                  .run_folder = folder(run),
                                  .samples_folder = {}});
    return process;
  }

  fs::path folder(const std::string& run) const { return files_.path() / run; }
  fs::path kept(const std::string& run, int64_t round) const {
    return kept_file(folder(run), round);
  }
  // One row a step, in the order of the file.
  std::unique_ptr<data::BatchStream> open(const fs::path& file, data::Cursor cursor) const {
    const data::Source source{.path = file.string(), .format = data::Format::kInputIds};
    const data::DataOptions options{.max_length = 32};
    auto rows =
        std::make_shared<data::Dataset>(std::vector<data::Source>{source}, options,
                                        files_.tokenizer(), test::chat_template(), files_.cache());
    return std::make_unique<data::BatchStream>(
        std::move(rows),
        data::BatchOptions{
            .rows_per_micro_batch = 1, .max_length = 32, .packing = false, .shuffle = false},
        cursor);
  }

  // The numbers of the samples in a kept file, line by line.
  static SampleIds kept_ids(const fs::path& file) {
    const std::string text = read_file(file);
    const std::regex number(R"("sample_id": (\d+))");
    SampleIds ids;
    for (auto it = std::sregex_iterator(text.begin(), text.end(), number);
         it != std::sregex_iterator(); ++it)
      ids.push_back(std::stoull((*it)[1].str()));
    return ids;
  }
  static std::map<std::string, double> metrics(const RejectionSampler& sampler) {
    MetricsRow row;
    sampler.add_metrics(row);
    return by_name(row);
  }
  static std::map<std::string, double> by_name(const MetricsRow& row) {
    std::map<std::string, double> numbers;
    for (const auto& [name, value] : row.values)
      numbers[name] = std::visit([](auto number) { return static_cast<double>(number); }, value);
    return numbers;
  }
  static std::vector<int32_t> ids_of(const data::BatchStream::Step& step) {
    return step.micro_batches.at(0).samples.at(0).input_ids;
  }

  parallel::World world_{{.role = "student", .layout = {}}};
  test::PromptFiles files_{5};
  roles::Trainer trainer_{
      models::Decoder::random(roles::nano_model(models::Family::kQwen3, true, 1), 7, at::kFloat),
      world_,
      {}};
};

// Rewards of the first round's samples 0 to 7: 0.5, 0, 1, 1 (the same text) and 1, 0.5, 0, 1.
TEST_F(RejectionSamplerTest, KeepsWhatIsSelected) {
  struct Case {
    RejectionSamplingOptions options;
    SampleIds kept;
  };
  const std::vector<Case> cases{
      {{.top_n = 1}, {2, 4}},
      {{.top_n = 2}, {2, 0, 4, 7}},
      {{.top_n = 2, .deduplicate = false}, {2, 3, 4, 7}},
      {{.top_n = 4, .threshold = 0.5}, {2, 0, 4, 7, 5}},
      {{.select = Select::kThreshold, .threshold = 0.75}, {2, 4, 7}},
      {{.select = Select::kTopFraction, .top_fraction = 0.375}, {2, 4, 7}},
      {{.top_n = 1, .keep_truncated = false}, {2, 7}},  // sample 4 is the one that was cut off
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE("case " + std::to_string(i));
    const std::string run = "selected-" + std::to_string(i);
    const Process process = start(run, cases[i].options);
    process.sampler->step(1, {});
    EXPECT_EQ(kept_ids(kept(run, 0)), cases[i].kept);
    EXPECT_EQ(metrics(*process.sampler).at("num_kept"), static_cast<double>(cases[i].kept.size()));
  }
}

TEST_F(RejectionSamplerTest, ARoundIsDrawnWithTheStudentOfItsFirstStep) {
  const Process process = start("run");
  for (int64_t step = 1; step <= 4; ++step)
    process.sampler->step(step, {});

  ASSERT_EQ(process.samples->asked.size(), 2u);
  const Asked& second = process.samples->asked[1];
  EXPECT_EQ(second.step, 3);
  EXPECT_EQ(second.number, 1u);
  EXPECT_EQ(second.version, 3u);
  EXPECT_EQ(second.sample_ids, (SampleIds{8, 9, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(second.prompts.at(0), files_.prompts()->get(2)->prompt_ids);
  EXPECT_EQ(process.samples->asked[0].version, 1u);
  EXPECT_EQ(process.samples->pushed.size(), 2u);
}

TEST_F(RejectionSamplerTest, TrainsOnTheKeptCompletionsOfTheirPrompts) {
  const Process process = start("run");
  const std::vector<uint64_t> expected{2, 4};
  for (int64_t step = 1; step <= 2; ++step) {
    const data::BatchStream::Step batches = process.sampler->step(step, {});
    const data::Sample& sample = batches.micro_batches.at(0).samples.at(0);
    const std::vector<int32_t> prompt = files_.prompts()->get(step - 1)->prompt_ids;
    const std::vector<int32_t> said =
        test::numbered_answer(expected[static_cast<size_t>(step - 1)]).token_ids;

    std::vector<int32_t> all = prompt;
    all.insert(all.end(), said.begin(), said.end());
    std::vector<uint8_t> targets(prompt.size(), 0);
    targets.resize(all.size(), 1);
    EXPECT_EQ(sample.input_ids, all);
    EXPECT_EQ(sample.is_target, targets);
  }
}

TEST_F(RejectionSamplerTest, WritesRowsAndNumbersOfARound) {
  const Process process = start("run");
  process.sampler->step(1, {});
  const std::map<std::string, double> expected{
      {"round", 0},
      {"reward", 5.0 / 8},
      {"reward_kept", 1},
      {"num_samples", 8},
      {"num_kept", 2},
      {"num_unscorable", 0},
      {"num_samples_truncated", 1},
      {"weight_version", 1},
      {"generation_time", test::FakeSampleSource::kGenerationSeconds}};
  EXPECT_EQ(metrics(*process.sampler), expected);
  EXPECT_EQ(by_name(read_round_metrics(kept("run", 0))), expected);

  const std::string rows = read_file(kept("run", 0));
  EXPECT_EQ(std::count(rows.begin(), rows.end(), '\n'), 2);
  for (const std::string part : {"\"reward\": 1", "\"round\": 0", "\"seed\": 3",
                                 "\"weight_version\": 1", "\"prompt\": \"w0 w1\""})
    EXPECT_NE(rows.find(part), std::string::npos) << part;
}

TEST_F(RejectionSamplerTest, AnEmptyCompletionIsUnscorable) {
  const RejectionSamplingOptions options{.select = Select::kThreshold, .threshold = 0.5};
  const Process process =
      start("run", options, [](const data::PromptSample&, uint64_t sample_id, uint64_t) {
        // An empty text would be short enough for half a point.
        return sample_id % 4 == 0 ? models::Completion() : test::numbered_answer(sample_id);
      });
  process.sampler->step(1, {});
  EXPECT_EQ(kept_ids(kept("run", 0)), (SampleIds{2, 3, 7, 5}));
  EXPECT_EQ(metrics(*process.sampler).at("num_unscorable"), 2);
  EXPECT_EQ(metrics(*process.sampler).at("num_samples"), 6);
}

TEST_F(RejectionSamplerTest, ARoundThatKeepsNothingIsAnErrorThatNamesIt) {
  const RejectionSamplingOptions options{.select = Select::kThreshold, .threshold = 0.5};
  const Process process =
      start("run", options, [](const data::PromptSample&, uint64_t sample_id, uint64_t version) {
        // From the second round on two tokens, which get nothing.
        return test::numbered_answer(version == 1 ? sample_id : 1);
      });
  process.sampler->step(1, {});
  process.sampler->step(2, {});
  test::expect_error(ErrorCode::kInvalidArgument,
                     "round 1 of rejection sampling kept none of 8 scorable samples",
                     [&] { process.sampler->step(3, {}); });
  EXPECT_FALSE(fs::exists(kept("run", 1)));
}

TEST_F(RejectionSamplerTest, ResumesInTheMiddleOfARoundWithoutDrawingAgain) {
  const Process whole = start("whole");
  std::vector<data::BatchStream::Step> steps;
  std::vector<std::map<std::string, double>> numbers;
  for (int64_t step = 1; step <= 4; ++step) {
    steps.push_back(whole.sampler->step(step, {}));
    numbers.push_back(metrics(*whole.sampler));
  }

  // One process does the first step, another one the rest.
  const Process before = start("stopped");
  const data::Cursor saved = before.sampler->step(1, {}).after;
  const Process after = start("stopped");
  for (int64_t step = 2; step <= 4; ++step) {
    const auto i = static_cast<size_t>(step - 1);
    EXPECT_EQ(ids_of(after.sampler->step(step, saved)), ids_of(steps[i])) << "step " << step;
    EXPECT_EQ(metrics(*after.sampler), numbers[i]) << "step " << step;
    EXPECT_EQ(after.samples->asked.size(), step == 2 ? 0u : 1u) << "step " << step;
  }

  // The round after is drawn as ever: its prompts are those behind the first round's.
  ASSERT_EQ(after.samples->asked.size(), 1u);
  EXPECT_EQ(after.samples->asked[0], whole.samples->asked[1]);
  EXPECT_EQ(read_file(kept("stopped", 1)), read_file(kept("whole", 1)));
  EXPECT_NE(ids_of(steps[0]), ids_of(steps[1])) << "or the test shows nothing";
}

// The same answers with an environment between their tokens. Its metric has a name that no line of
// words and numbers could hold.
models::Completion played_answer(const data::PromptSample& prompt, uint64_t sample_id,
                                 uint64_t version) {
  return test::as_episode(prompt.prompt_ids, answer(prompt, sample_id, version),
                          test::played_record("0.5", R"({"solve rate\n1": 1})"));
}

// Rewards by length count the model's tokens alone, so that the same samples are kept as without an
// environment.
TEST_F(RejectionSamplerTest, OfAnEpisodeTheModelsTokensAreLearned) {
  const Process process = start("run", {}, played_answer, /*episodes=*/true);
  const std::vector<uint64_t> expected{2, 4};
  for (int64_t step = 1; step <= 2; ++step) {
    const data::BatchStream::Step batches = process.sampler->step(step, {});
    const data::MicroBatch& batch = batches.micro_batches.at(0);
    models::Completion episode =
        played_answer(*files_.prompts()->get(step - 1), expected[static_cast<size_t>(step - 1)], 1);
    const std::vector<int32_t> prompt = models::take_prompt(episode);
    std::vector<int32_t> all = prompt;
    all.insert(all.end(), episode.token_ids.begin(), episode.token_ids.end());
    std::vector<uint8_t> targets(prompt.size(), 0);
    for (const uint8_t own : models::model_tokens(episode))
      targets.push_back(own);
    EXPECT_EQ(batch.samples.at(0).input_ids, all);
    EXPECT_EQ(batch.samples.at(0).is_target, targets);

    // A mask that took all that stands behind the prompt would have two more.
    EXPECT_EQ(batch.num_targets(), models::num_model_tokens(episode));
    EXPECT_EQ(batch.num_targets() + 2, static_cast<int64_t>(episode.token_ids.size()));
  }
  EXPECT_EQ(kept_ids(kept("run", 0)), (SampleIds{2, 4}));
}

// A row says whose its tokens are, turn by turn, and how the episode went.
TEST_F(RejectionSamplerTest, KeptEpisodesHaveTheirTurns) {
  const Process process = start("run", {}, played_answer, /*episodes=*/true);
  process.sampler->step(1, {});
  const std::string rows = read_file(kept("run", 0));
  const std::string first = rows.substr(0, rows.find('\n'));
  // Sample 2 has three tokens, behind the row's prompt and the environment's word.
  const std::vector<int32_t> said = test::numbered_answer(2).token_ids;
  ASSERT_EQ(said.size(), 3u);
  std::string labels = "\"labels\": [";
  for (size_t i = 0; i <= files_.prompts()->get(0)->prompt_ids.size(); ++i)
    labels += "-100, ";
  labels += std::to_string(said[0]) + ", -100, -100, " + std::to_string(said[1]) + ", " +
            std::to_string(said[2]) + "]";
  const std::vector<std::string> parts{
      R"("spans": [["model", 1], ["environment", 2], ["model", 2]])", labels,
      R"("episode": {"reward": 0.5, )", R"("turns": 2, "calls": 1)"};
  for (const std::string& part : parts)
    EXPECT_NE(first.find(part), std::string::npos) << part << " in " << first;

  const auto numbers = metrics(*process.sampler);
  EXPECT_EQ(numbers.at("episodes/mean_turns"), 2);
  EXPECT_EQ(numbers.at("episodes/mean_environment_tokens"), 2);
  EXPECT_EQ(numbers.at("episodes/num_lost"), 0);
  EXPECT_EQ(numbers.at("environment/solve rate\n1"), 1);
  EXPECT_EQ(by_name(read_round_metrics(kept("run", 0))), numbers);
}

// What was said is the same, but not to the same question.
TEST_F(RejectionSamplerTest, EpisodesThatBeginOtherwiseAreNoDuplicates) {
  const Process process = start(
      "run", {.top_n = 2},
      [](const data::PromptSample& prompt, uint64_t sample_id, uint64_t version) {
        return test::as_episode(prompt.prompt_ids, answer(prompt, sample_id, version),
                                test::played_record("0.5", "{}"), sample_id == 3 ? 41 : 40);
      },
      /*episodes=*/true);
  process.sampler->step(1, {});
  EXPECT_EQ(kept_ids(kept("run", 0)), (SampleIds{2, 3, 4, 7}));
  EXPECT_EQ(metrics(*process.sampler).at("episodes/frac_groups_with_other_prompts"), 0.5);
}

TEST_F(RejectionSamplerTest, LostEpisodesAreUnscorableAndARoundOfThemIsAnError) {
  const auto lost = [](const data::PromptSample& prompt, uint64_t sample_id, uint64_t version) {
    // From the second round on all of them.
    return sample_id % 4 == 2 || version > 1
               ? test::lost_episode(prompt.prompt_ids, answer(prompt, sample_id, version), "gone")
               : played_answer(prompt, sample_id, version);
  };
  const Process process = start("run", {}, lost, /*episodes=*/true);
  process.sampler->step(1, {});
  process.sampler->step(2, {});
  EXPECT_EQ(kept_ids(kept("run", 0)), (SampleIds{3, 4}));
  EXPECT_EQ(metrics(*process.sampler).at("num_unscorable"), 2);
  EXPECT_EQ(metrics(*process.sampler).at("episodes/num_lost"), 2);
  test::expect_error(ErrorCode::kUnavailable,
                     "not one of the 8 episodes of this round can be scored; the first of this "
                     "rank: gone",
                     [&] { process.sampler->step(3, {}); });
}

}  // namespace
}  // namespace retort::recipes

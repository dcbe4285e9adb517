// On-policy distillation's batches in one process: which steps the student continues, with which
// weights, and what becomes of its completions.
#include <gtest/gtest.h>

#include "base/file.h"
#include "recipes/distill/on_policy.h"
#include "tests/recipes/rollout/fake_sample_source.h"
#include "tests/recipes/rollout/prompt_files.h"
#include "tests/roles/nano_model.h"
#include "tests/support/thrown.h"

namespace retort::recipes {
namespace {

using Asked = test::FakeSampleSource::Asked;
using Ids = std::vector<int32_t>;

// `prompt` tokens and then `targets` of them, which are the data's own completion.
data::Sample sample(int32_t first, int32_t prompt, int32_t targets) {
  data::Sample sample;
  for (int32_t i = 0; i < prompt + targets; ++i) {
    sample.input_ids.push_back(10 + (first + 7 * i) % 50);
    sample.is_target.push_back(i >= prompt);
  }
  sample.origin = "train.jsonl:" + std::to_string(first);
  sample.fields = {{"domain", "math"}};
  return sample;
}

// Two micro-batches, other ones in each step.
data::BatchStream::Step batches(int64_t step) {
  const auto first = static_cast<int32_t>(3 * step);
  data::BatchStream::Step result;
  result.micro_batches.push_back(
      data::make_micro_batch({sample(first, 2, 5), sample(first + 1, 4, 3)}));
  result.micro_batches.push_back(data::make_micro_batch({sample(first + 2, 3, 1)}));
  result.after = {.total = step};
  result.epoch = 0.25;
  return result;
}

std::vector<data::Sample> samples_of(const data::BatchStream::Step& step) {
  std::vector<data::Sample> all;
  for (const data::MicroBatch& batch : step.micro_batches)
    all.insert(all.end(), batch.samples.begin(), batch.samples.end());
  return all;
}
std::vector<Ids> rows_of(const data::BatchStream::Step& step) {
  std::vector<Ids> rows;
  for (const data::Sample& sample : samples_of(step))
    rows.push_back(sample.input_ids);
  return rows;
}
Ids targets_of(const data::BatchStream::Step& step) {
  Ids ids;
  for (const data::MicroBatch& batch : step.micro_batches)
    for (int64_t i = 0; i < batch.num_targets(); ++i)
      ids.push_back(static_cast<int32_t>(batch.targets.const_data_ptr<int64_t>()[i]));
  return ids;
}

class OnPolicySourceTest : public ::testing::Test {
 protected:
  struct Process {
    std::shared_ptr<test::FakeSampleSource> samples;
    std::unique_ptr<OnPolicySource> source;
  };
  Process start(const OnPolicySource::Options& options, StepSource data = batches) {
    Process process;
    process.samples = std::make_shared<test::FakeSampleSource>(
        test::word_tokenizer(folder_.path()),
        [this](const data::PromptSample&, uint64_t sample_id, uint64_t) {
          return sample_id == silent_ ? models::Completion() : test::numbered_answer(sample_id);
        });
    process.source = std::make_unique<OnPolicySource>(world_, trainer_, std::move(data),
                                                      process.samples, options);
    return process;
  }
  static uint64_t sample_id(int64_t step, uint64_t place) {
    return (static_cast<uint64_t>(step) << 24) + place;
  }

  parallel::World world_{{.role = "student", .layout = {}}};
  test::TemporaryFolder folder_;
  roles::Trainer trainer_{
      models::Decoder::random(roles::nano_model(models::Family::kQwen3, true, 1), 7, at::kFloat),
      world_,
      {}};
  uint64_t silent_ = 0;  // the sample to which nothing is said; 0: none
};

TEST_F(OnPolicySourceTest, SeedAndShareSayWhichStepsAreTheStudents) {
  const Process process = start({.lmbda = 0.5, .seed = 11});
  std::vector<int64_t> drawn;
  for (int64_t step = 1; step <= 200; ++step) {
    const size_t before = process.samples->asked.size();
    const data::BatchStream::Step result = (*process.source)(step);
    const bool asked = process.samples->asked.size() > before;
    EXPECT_EQ(asked, is_on_policy(11, step, 0.5)) << "step " << step;
    EXPECT_EQ(rows_of(result) == rows_of(batches(step)), !asked) << "step " << step;
    if (asked) drawn.push_back(step);
  }
  EXPECT_GT(drawn.size(), 70u);
  EXPECT_LT(drawn.size(), 130u);

  // By the student of each such step, whose weights were pushed before.
  ASSERT_EQ(process.samples->asked.size(), drawn.size());
  ASSERT_EQ(process.samples->pushed.size(), drawn.size());
  for (size_t i = 0; i < drawn.size(); ++i) {
    EXPECT_EQ(process.samples->asked[i].step, drawn[i]);
    EXPECT_EQ(process.samples->asked[i].version, static_cast<uint64_t>(drawn[i]));
    EXPECT_EQ(process.samples->pushed[i].version, static_cast<uint64_t>(drawn[i]));
  }
}

// Rows of samples are ids; what people read of them is written all the same.
TEST_F(OnPolicySourceTest, SavedSamplesHavePromptReferenceAndFields) {
  const Process process = start({.lmbda = 1,
                                 .samples_folder = folder_.path() / "samples",
                                 .tokenizer = test::word_tokenizer(folder_.path())});
  (*process.source)(1);
  const std::string lines = read_file(folder_.path() / "samples" / "step-1-rank-0.jsonl");
  const std::string first = lines.substr(0, lines.find('\n'));
  for (const std::string part : {R"("prompt": "w3 w10")", R"("reference": "w17 w24 w31 w38 w45")",
                                 R"("fields": {"domain": "math"})", R"("prompt_ids": [13, 20])"})
    EXPECT_NE(first.find(part), std::string::npos) << part << " in " << first;
}

TEST_F(OnPolicySourceTest, NoneAndAllAreShares) {
  const Process none = start({.lmbda = 0});
  const Process all = start({.lmbda = 1});
  for (int64_t step = 1; step <= 5; ++step) {
    EXPECT_EQ(rows_of((*none.source)(step)), rows_of(batches(step)));
    (*all.source)(step);
  }
  EXPECT_TRUE(none.samples->asked.empty());
  EXPECT_TRUE(none.samples->pushed.empty()) << "nobody waits for weights";
  EXPECT_EQ(all.samples->asked.size(), 5u);
}

TEST_F(OnPolicySourceTest, TargetsAreTheStudentsCompletionsAlone) {
  const Process process = start({.lmbda = 1});
  const data::BatchStream::Step result = (*process.source)(4);
  const data::BatchStream::Step data = batches(4);
  EXPECT_EQ(result.after.total, data.after.total);
  EXPECT_EQ(result.epoch, data.epoch);
  ASSERT_EQ(result.micro_batches.size(), 2u);
  EXPECT_EQ(result.micro_batches[0].samples.size(), 2u);
  EXPECT_EQ(result.micro_batches[1].samples.size(), 1u);

  const std::vector<size_t> prompts{2, 4, 3};  // tokens before the first target
  std::vector<Ids> asked;
  Ids said;
  for (uint64_t i = 0; i < prompts.size(); ++i) {
    const data::Sample before = samples_of(data)[i];
    const data::Sample after = samples_of(result)[i];
    const Ids completion = test::numbered_answer(sample_id(4, i)).token_ids;
    Ids row(before.input_ids.begin(),
            before.input_ids.begin() + static_cast<std::ptrdiff_t>(prompts[i]));
    asked.push_back(row);
    row.insert(row.end(), completion.begin(), completion.end());
    said.insert(said.end(), completion.begin(), completion.end());

    std::vector<uint8_t> targets(prompts[i], 0);
    targets.resize(row.size(), 1);
    EXPECT_EQ(after.input_ids, row);
    EXPECT_EQ(after.is_target, targets);
    EXPECT_EQ(after.origin, before.origin);
    EXPECT_EQ(after.fields, before.fields);
  }
  EXPECT_EQ(targets_of(result), said);
  EXPECT_EQ(process.samples->asked.at(0).prompts, asked);
  EXPECT_EQ(process.samples->asked.at(0).sample_ids,
            (std::vector<uint64_t>{sample_id(4, 0), sample_id(4, 1), sample_id(4, 2)}));
}

// As TRL's GKD: the prompt is all but what was said last.
TEST_F(OnPolicySourceTest, AConversationIsAnsweredAtItsEnd) {
  data::Sample chat{.input_ids = {11, 12, 13, 14, 15, 16, 17}, .origin = "train.jsonl:9"};
  chat.is_target = {0, 0, 1, 1, 0, 1, 1};
  const Process process = start({.lmbda = 1}, [&](int64_t) {
    data::BatchStream::Step step;
    step.micro_batches.push_back(data::make_micro_batch({chat}));
    return step;
  });
  const data::BatchStream::Step result = (*process.source)(1);
  const Ids prompt{11, 12, 13, 14, 15};
  EXPECT_EQ(process.samples->asked.at(0).prompts, (std::vector<Ids>{prompt}));
  const data::Sample said = samples_of(result).at(0);
  EXPECT_EQ(data::last_turn_begin(said.is_target), 5);
  EXPECT_EQ(said.num_targets(), static_cast<int64_t>(said.input_ids.size()) - 5)
      << "what was said before is context";
}

TEST_F(OnPolicySourceTest, AnEmptyCompletionIsLeftOut) {
  silent_ = sample_id(2, 2);
  const Process process = start({.lmbda = 1});
  const data::BatchStream::Step result = (*process.source)(2);
  ASSERT_EQ(result.micro_batches.size(), 2u) << "an empty one still takes part";
  EXPECT_EQ(result.micro_batches[0].samples.size(), 2u);
  EXPECT_EQ(result.micro_batches[1].samples.size(), 0u);
  EXPECT_EQ(result.micro_batches[1].num_targets(), 0);
}

std::vector<uint64_t> versions_of(const std::vector<Asked>& asked) {
  std::vector<uint64_t> versions;
  for (const Asked& one : asked)
    versions.push_back(one.version);
  return versions;
}

// A batch is drawn two steps ahead and asked about one step ahead, but for what stands behind a
// checkpoint.
TEST_F(OnPolicySourceTest, StaleBatchesAreDrawnAheadUpToACheckpoint) {
  const DrawAhead draws{.max_staleness = 2, .save_steps = 4, .max_steps = 8};
  const Process process = start({.lmbda = 1, .draws = draws});
  std::vector<int64_t> staleness;
  for (int64_t step = 1; step <= 8; ++step) {
    EXPECT_EQ((*process.source)(step).after.total, step) << "the rows of another step";
    MetricsRow row{.step = step, .values = {}};
    process.source->add_metrics(row);
    ASSERT_EQ(row.values.back().first, "staleness");
    staleness.push_back(std::get<int64_t>(row.values.back().second));
  }
  EXPECT_EQ(staleness, (std::vector<int64_t>{0, 1, 2, 2, 0, 1, 2, 2}));
  EXPECT_EQ(versions_of(process.samples->asked), (std::vector<uint64_t>{1, 1, 1, 2, 5, 5, 5, 6}));
  using Pushed = test::FakeSampleSource::Pushed;
  EXPECT_EQ(process.samples->pushed, (std::vector<Pushed>{{.version = 1, .in_flight = 0},
                                                          {.version = 2, .in_flight = 1},
                                                          {.version = 5, .in_flight = 0},
                                                          {.version = 6, .in_flight = 1}}));

  // A run that begins at the checkpoint draws the rest with the same weights.
  DrawAhead behind = draws;
  behind.start_step = 4;
  const Process resumed = start({.lmbda = 1, .draws = behind});
  for (int64_t step = 5; step <= 8; ++step)
    (*resumed.source)(step);
  const std::vector<Asked>& all = process.samples->asked;
  EXPECT_EQ(resumed.samples->asked, std::vector<Asked>(all.begin() + 4, all.end()));
}

TEST_F(OnPolicySourceTest, OfStalenessOneTheStepBeforeIsComputedMeanwhile) {
  const Process process = start({.lmbda = 1, .draws = {.max_staleness = 1, .max_steps = 4}});
  for (int64_t step = 1; step <= 4; ++step)
    (*process.source)(step);
  EXPECT_EQ(versions_of(process.samples->asked), (std::vector<uint64_t>{1, 1, 2, 3}));
}

TEST_F(OnPolicySourceTest, AResumedRunDrawsTheSame) {
  const OnPolicySource::Options options{.lmbda = 0.5, .seed = 11};
  const Process whole = start(options);
  std::vector<std::vector<Ids>> rows;
  for (int64_t step = 1; step <= 24; ++step)
    rows.push_back(rows_of((*whole.source)(step)));

  const Process resumed = start(options);
  for (int64_t step = 13; step <= 24; ++step)
    EXPECT_EQ(rows_of((*resumed.source)(step)), rows[static_cast<size_t>(step - 1)]);
  std::vector<Asked> expected;
  for (const Asked& asked : whole.samples->asked)
    if (asked.step >= 13) expected.push_back(asked);
  EXPECT_EQ(resumed.samples->asked, expected);
  EXPECT_FALSE(expected.empty()) << "or the test shows nothing";
}

TEST_F(OnPolicySourceTest, APromptThatCannotBeContinuedIsNamed) {
  const auto refuses = [&](const data::Sample& bad, const std::string& part) {
    const Process process =
        start({.lmbda = 1, .max_length = 12, .max_new_tokens = 6}, [&](int64_t) {
          data::BatchStream::Step step;
          step.micro_batches.push_back(data::make_micro_batch({bad}));
          return step;
        });
    const std::string message = test::message_of([&] { (*process.source)(1); });
    EXPECT_NE(message.find(bad.origin), std::string::npos) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_TRUE(process.samples->asked.empty());
  };
  refuses(sample(1, 0, 4), "no tokens before its last targets");
  refuses(sample(2, 7, 2), "leaves no room");
}

}  // namespace
}  // namespace retort::recipes

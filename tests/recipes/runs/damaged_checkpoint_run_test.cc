// Checkpoints that are damaged, not there on every host, or cannot be saved: a run goes on from one
// state on all ranks, or says which file is wrong.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "tests/recipes/run_support/joined_run.h"
#include "tests/recipes/run_support/on_policy_support.h"

namespace retort::test {
namespace {

using Words = std::vector<std::string>;

// A checkpoint every three steps; the run ends itself after `until`.
Words saving(const fs::path& recipe, int64_t until, const Words& more = {}) {
  Words words{"launch", recipe.string(), "train.save_steps=3",
              "train.exit_interval=" + std::to_string(until)};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

void damage_middle(const fs::path& file) {
  const uint64_t middle = fs::file_size(file) / 2;
  const std::byte other = MappedFile(file).bytes()[middle] ^ std::byte{1};
  SharedFile(file).write(middle, {&other, 1});
}

nlohmann::json status_of(const fs::path& run) {
  return nlohmann::json::parse(read_file(run / "status.json"));
}

// By hand it is refused, with the file and the one before; by itself the run falls back, and its
// numbers are those of a run without damage.
TEST(DamagedCheckpoint, IsToldAndMayBeFallenBackFrom) {
  const TemporaryFolder folder;
  const GoldenRecipe golden{.rows = 2, .steps = 12};
  const auto whole = retort(saving(write_recipe(folder / "whole", golden), 100));
  ASSERT_EQ(whole.exit_code, 0) << whole.output;

  const fs::path recipe = write_recipe(folder / "damaged", golden);
  const fs::path run = folder / "damaged/run", newest = run / "checkpoint-9";
  const auto stopped = retort(saving(recipe, 9));
  ASSERT_EQ(stopped.exit_code, 4) << stopped.output;
  const fs::path file = newest / "state/optimizer.safetensors";
  damage_middle(file);

  const auto refused = retort(saving(recipe, 100, {"--resume"}));
  EXPECT_EQ(refused.exit_code, 1) << refused.output;
  EXPECT_NE(refused.output.find(file.string() + " is not what was saved"), std::string::npos)
      << refused.output;
  EXPECT_NE(refused.output.find("go on from checkpoint-6 before it"), std::string::npos);
  EXPECT_TRUE(fs::exists(newest));

  // Nor does anybody else take it for whole.
  damage_middle(newest / "model.safetensors");
  const auto exported =
      retort({"model", "convert", newest.string(), "--output", (folder / "other").string()});
  EXPECT_EQ(exported.exit_code, 1) << exported.output;
  EXPECT_NE(exported.output.find("model.safetensors is not what was saved"), std::string::npos)
      << exported.output;

  const auto result = retort(saving(recipe, 100, {"--resume", "launch.max_restarts=1"}));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("is damaged; it is now " + newest.string() +
                               ".damaged, and the "
                               "run goes on from checkpoint-6"),
            std::string::npos)
      << result.output;
  const std::string warning = status_of(run).at("warning");
  EXPECT_NE(warning.find("checkpoint-9 is damaged"), std::string::npos) << warning;
  EXPECT_EQ(timeless_metrics(run), timeless_metrics(folder / "whole/run"));
  EXPECT_TRUE(read_file(run / "final/model.safetensors") ==
              read_file(folder / "whole/run/final/model.safetensors"));
}

// The limit is what a full disk is: no file of the run may be larger.
TEST(FailedSave, EndsTheRunAtOnceOrAtItsLastStep) {
  const TemporaryFolder folder;
  for (const bool goes_on : {false, true}) {
    const fs::path place = folder / (goes_on ? "continue" : "stop");
    const fs::path recipe = write_recipe(place, {.rows = 2, .steps = 6});
    Words words{"/bin/sh", "-c", "trap '' XFSZ; exec prlimit --fsize=32768 \"$@\"", "sh",
                retort_binary()};
    for (const std::string& word : saving(recipe, 100))
      words.push_back(word);
    if (goes_on) words.emplace_back("train.on_save_error=continue");
    const auto result = Command(words).wait();
    EXPECT_EQ(result.exit_code, 3) << result.output;
    EXPECT_NE(result.output.find(goes_on ? "checkpoint-6 was not saved" : "checkpoint-3 was not"),
              std::string::npos)
        << result.output;

    const nlohmann::json status = status_of(place / "run");
    EXPECT_EQ(status.at("state"), "failed");
    EXPECT_EQ(status.dump().find("checkpoint-3 was not saved: ") != std::string::npos &&
                  status.dump().find("the run goes on without it") != std::string::npos,
              goes_on)
        << status;
  }
}

// Two ranks of one replica, each of which sees the run's folder in its own way: rank 1 without the
// newest two checkpoints, as a host of NFS may for a minute.
class MixedFolders : public testing::TestWithParam<std::string> {};

// A mount needs a name space of its own, and that needs rights.
bool can_unshare() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::unshare(CLONE_NEWNS) == 0 ? 0 : 1);
  int status = 0;
  return ::waitpid(child, &status, 0) == child && status == 0;
}

TEST_P(MixedFolders, AreRefusedByName) {
  if (!can_unshare()) GTEST_SKIP() << "mounts need root";
  const TemporaryFolder folder;
  const fs::path place = folder / "joined", run = place / "run", old = place / "old";
  const fs::path recipe =
      write_recipe(place, {.rows = 2, .steps = 18, .student_world = ", " + GetParam() + ": 2"});
  const Words settings{"train.save_steps=3", "launch.collective_timeout=6s"};
  const auto start = [&](const Words& more, const Words& before) {
    Words words = settings;
    words.insert(words.end(), more.begin(), more.end());
    JoinedRun joined(place);
    for (int64_t rank = 0; rank < 2; ++rank) {
      JoinedProcess process{.variables = {{"RETORT_RANK", std::to_string(rank)}},
                            .arguments = {recipe.string()},
                            .before = rank == 1 ? before : Words{}};
      process.arguments.insert(process.arguments.end(), words.begin(), words.end());
      joined.start(std::move(process));
    }
    return joined.wait();
  };
  for (const auto& result : start({"train.exit_interval=12"}, {}))
    ASSERT_EQ(result.exit_code, 4) << result.output;
  fs::copy(run, old, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  for (const char* newer : {"checkpoint-9", "checkpoint-12"})
    fs::remove_all(old / newer);

  const std::string mount = "mount --bind '" + old.string() + "' '" + run.string() + "'";
  const auto results =
      start({"--resume"}, {"unshare", "--mount", "/bin/sh", "-c", mount + " && exec \"$@\"", "sh"});
  std::string all;
  for (const auto& result : results) {
    EXPECT_NE(result.exit_code, 0) << result.output;
    all += result.output;
  }
  EXPECT_NE(all.find("student/0 goes on from checkpoint-12, which after 3s"), std::string::npos)
      << all;
  EXPECT_NE(all.find("the newest one there is checkpoint-6"), std::string::npos) << all;
  EXPECT_EQ(metrics_rows(run), 12U) << "no step was trained";
  EXPECT_FALSE(fs::exists(run / "checkpoint-15"));

  // The same folder for both: the run goes on.
  for (const auto& result : start({"--resume"}, {}))
    EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(metrics_rows(run), 18U);
}
INSTANTIATE_TEST_SUITE_P(Layouts, MixedFolders, testing::Values("pp", "tp"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace retort::test

// A serving process is lost in the middle of a run, once or twice: the run goes on without it or
// waits for its successor, and what it computes is that of a run without the loss, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <sstream>

#include "base/file.h"
#include "tests/recipes/run_support/disturbed_run.h"

namespace retort::test {
namespace {

constexpr auto kDeadline = std::chrono::seconds(120);
// Steps where another replica takes over, so that the loss of one does not slow the run down.
constexpr int64_t kLongRun = 300;

// The same recipe in a folder of its own, each time.
using Write = std::function<fs::path(const TemporaryFolder& data, const fs::path& folder)>;

Write distill(int64_t replicas, const std::string& world = {},
              const std::map<std::string, std::string>& settings = {{"payload", "topk"}}) {
  return [=](const TemporaryFolder&, const fs::path& folder) {
    return write_recipe(folder, {.teacher = "teacher",
                                 .steps = replicas > 1 ? kLongRun : 40,
                                 .teacher_replicas = replicas,
                                 .distill = settings,
                                 .teacher_world = world});
  };
}

const std::map<std::string, std::string> kSampled{
    {"payload", "sampled"}, {"num_samples", "6"}, {"replacement", "false"}};

Write support(const std::string& whose, const std::string& world = {}) {
  return distill(
      1, world,
      {{"payload", "topk"}, {"support", whose}, {"loss_top_k", "5"}, {"loss_type", "reverse_kl"}});
}

Write on_policy(OnPolicyRecipe recipe) {
  return [recipe](const TemporaryFolder& data, const fs::path& folder) mutable {
    recipe.data = recipe.recipe == "dpo" ? write_pairs(data) : write_prompts(data);
    recipe.steps = recipe.generators > 1 ? kLongRun : 40;
    return write_on_policy(folder, recipe);
  };
}
Write dpo() {
  return on_policy(
      {.recipe = "dpo", .reference = "teacher", .rows = 4, .block = {{"beta", "0.1"}}});
}
Write grpo(int64_t generators, const std::string& world = {}) {
  return on_policy({.generators = generators, .student_world = world, .generator_world = world});
}
Write on_policy_distill() {
  return on_policy({.recipe = "on_policy_distill",
                    .teacher = "teacher",
                    .block = {{"payload", "topk"}},
                    .generation = {{"max_new_tokens", "10"}}});
}

struct Loss {
  std::string name;
  Write write;
  std::vector<RoleSignal> signals;
  std::vector<std::string> settings = {};
  std::string weights = "model.safetensors";  // of the last checkpoint
};

std::ostream& operator<<(std::ostream& out, const Loss& loss) { return out << loss.name; }

std::vector<RoleSignal> once(const std::string& role, int64_t rank = 0, int signal = SIGKILL) {
  return {{.rows = 3, .role = role, .rank = rank, .number = signal}};
}
// The successor too.
std::vector<RoleSignal> twice(const std::string& role, int64_t rank = 0) {
  return {{.rows = 3, .role = role, .rank = rank}, {.rows = 17, .role = role, .rank = rank}};
}

// Each role that was lost was started again as often.
void expect_started_again(const std::string& output, const std::vector<RoleSignal>& signals) {
  std::map<std::string, int> losses;
  for (const RoleSignal& signal : signals)
    ++losses[signal.role];
  for (const auto& [role, count] : losses) {
    const std::string times = "was started again (" + std::to_string(count) + " of 3 times)";
    bool is_said = false;
    std::istringstream lines(output);
    for (std::string line; std::getline(lines, line);)
      is_said |=
          line.find(role + "/") != std::string::npos && line.find(times) != std::string::npos;
    EXPECT_TRUE(is_said) << role << " " << times << "\n" << output;
  }
}

class ServingProcessLost : public testing::TestWithParam<Loss> {};

TEST_P(ServingProcessLost, ChangesNothing) {
  const Loss& loss = GetParam();
  const bool is_held =
      std::ranges::any_of(loss.signals, [](const auto& one) { return one.number == SIGSTOP; });
  TemporaryFolder folder;
  const auto launch = [&](const fs::path& place) {
    std::vector<std::string> words{"launch", loss.write(folder, place).string()};
    words.insert(words.end(), loss.settings.begin(), loss.settings.end());
    // So that a process that is held is soon taken for lost.
    if (is_held) {
      words.emplace_back("rpc.heartbeat_interval=200ms");
      words.emplace_back("rpc.peer_timeout=3s");
    }
    return words;
  };

  const auto whole = retort(launch(folder / "whole"), kDeadline);
  ASSERT_EQ(whole.exit_code, 0) << whole.output;

  const auto [place, result] =
      disturb(folder.path(), metrics_rows(folder / "whole/run"), loss.signals, launch);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  expect_started_again(result.output, loss.signals);

  EXPECT_EQ(timeless_metrics(place / "run"), timeless_metrics(folder / "whole/run"));
  EXPECT_TRUE(read_file(place / "run/final" / loss.weights) ==
              read_file(folder / "whole/run/final" / loss.weights));
  EXPECT_TRUE(all_gone(place.string()));
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, ServingProcessLost,
    testing::Values(
        // Killed, held, and asked to end, as often as it may.
        Loss{.name = "distill",
             .write = distill(1),
             .signals = {{.rows = 3, .role = "teacher"},
                         {.rows = 15, .role = "teacher", .number = SIGSTOP},
                         {.rows = 27, .role = "teacher", .number = SIGTERM}}},
        Loss{.name = "distill_two", .write = distill(2), .signals = twice("teacher", 1)},
        Loss{.name = "distill_tp",
             .write = distill(1, ", tp: 2", {{"payload", "hidden_states"}}),
             .signals = once("teacher", 1)},
        // With it goes what it has drawn, or kept until ids are named.
        Loss{.name = "sampled", .write = distill(1, "", kSampled), .signals = twice("teacher")},
        Loss{.name = "one_of_two_teachers",
             .write = distill(1),
             .signals = once("second"),
             .settings = {"roles.second={model: " + (goldens() / "qwen3").string() +
                              ", world: {threads: 1}}",
                          "distill.teachers=[{role: teacher, weight: 0.25}, "
                          "{role: second, weight: 0.75}]"}},
        Loss{.name = "support_student", .write = support("student"), .signals = once("teacher")},
        Loss{.name = "support_union", .write = support("union"), .signals = twice("teacher")},
        Loss{.name = "support_tp",
             .write = support("union", ", tp: 2"),
             .signals = once("teacher", 1)},
        // While its answers are not cached yet.
        Loss{.name = "dpo", .write = dpo(), .signals = {{.rows = 0, .role = "reference"}}},
        Loss{.name = "grpo", .write = grpo(1), .signals = twice("generator")},
        Loss{.name = "grpo_held", .write = grpo(2), .signals = once("generator", 1, SIGSTOP)},
        Loss{.name = "grpo_tp", .write = grpo(1, ", tp: 2"), .signals = once("generator", 1)},
        // It comes back with the model of its files, and is sent the adapter again.
        Loss{.name = "grpo_adapter",
             .write = grpo(1),
             .signals = once("generator"),
             .settings = {"roles.student.lora={r: 4, push: adapter}", "train.learning_rate=0.01"},
             .weights = "adapter_model.safetensors"},
        Loss{.name = "on_policy_distill",
             .write = on_policy_distill(),
             .signals = {{.rows = 3, .role = "generator"}, {.rows = 17, .role = "teacher"}}},
        // Some steps have answers that the student draws, the others the rows' own.
        Loss{.name = "mixed_teacher",
             .write = distill(1),
             .signals = twice("teacher"),
             .settings = {"roles.generator={model: " + (goldens() / "qwen3").string() +
                              ", world: {threads: 1}}",
                          "distill.lmbda=0.5", "generation={max_new_tokens: 10}"}}),
    [](const auto& info) { return info.param.name; });

// What a teacher says after its files were changed is not what it said before.
TEST(TeacherLost, WithOtherFilesItIsRefused) {
  TemporaryFolder folder;
  const fs::path model = folder / "teacher";
  fs::copy(goldens() / "teacher", model, fs::copy_options::recursive);
  const GoldenRecipe recipe{
      .teacher = model.string(), .steps = 100000, .distill = {{"payload", "topk"}}};
  Command run({retort_binary(), "launch", write_recipe(folder / "run", recipe).string()});
  ASSERT_TRUE(
      wait_until([&] { return metrics_rows(folder / "run/run") >= 3; }, std::chrono::seconds(60)));
  fs::copy_file(goldens() / "qwen3/config.json", model / "more.json");
  ASSERT_GT(signal_role(run, folder / "run", {.role = "teacher"}), 0);
  const auto result = run.wait(kDeadline);
  EXPECT_NE(result.exit_code, 0);
  EXPECT_NE(result.output.find("model's files have changed"), std::string::npos) << result.output;
}

// A rank of the student: the run ends, and goes on from its last checkpoint.
TEST(StudentLost, TheRunResumesByItself) {
  TemporaryFolder folder;
  std::optional<Command> watch;
  const auto launch = [&](const fs::path& place) -> std::vector<std::string> {
    const fs::path recipe = write_recipe(
        place,
        {.teacher = "teacher", .dp = 2, .rows = 2, .steps = 40, .distill = {{"payload", "topk"}}});
    return {"launch", recipe.string(), "train.save_steps=3", "launch.max_restarts=1"};
  };
  const auto whole = retort(launch(folder / "whole"), kDeadline);
  ASSERT_EQ(whole.exit_code, 0) << whole.output;

  const RoleSignal lost{.rows = 8, .role = "student", .rank = 1};
  const auto [place, result] = disturb(folder.path(), 40, {lost}, [&](const fs::path& where) {
    // Who watches it, once there is something to see, goes on too.
    const std::string run = (where / "run").string();
    watch.emplace(std::vector<std::string>{"/bin/sh", "-c",
                                           "until [ -e '" + run +
                                               "/status.json' ]; do sleep 0.05; done; exec '" +
                                               retort_binary() + "' status '" + run + "' --watch"});
    return launch(where);
  });
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const auto watched = watch->wait(kDeadline);
  EXPECT_EQ(watched.exit_code, 0) << watched.output;
  EXPECT_NE(watched.output.find("done, exit code 0"), std::string::npos) << watched.output;
  EXPECT_NE(result.output.find("student/1 failed first"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("goes on from its last checkpoint, 1 of 1"), std::string::npos)
      << result.output;
  EXPECT_EQ(timeless_metrics(place / "run"), timeless_metrics(folder / "whole/run"));
  EXPECT_TRUE(read_file(place / "run/final/model.safetensors") ==
              read_file(folder / "whole/run/final/model.safetensors"));
}

}  // namespace
}  // namespace retort::test

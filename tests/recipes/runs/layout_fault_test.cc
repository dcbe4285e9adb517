// Layouts that cannot be, and ranks that are killed, held, absent or asked to stop, against the
// real program.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "base/file.h"
#include "tests/recipes/run_support/on_policy_support.h"

namespace retort::test {
namespace {

constexpr auto kDeadline = std::chrono::seconds(30);

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// ---- what is refused before any process starts

struct BadLayout {
  std::string name;
  // of their `world:`; "": as it stands, and no such role
  std::string student, teacher, generator;
  nlohmann::json config = nlohmann::json::object();  // other sizes of the student
  int exit_code = 2;
  std::string message;
};

std::ostream& operator<<(std::ostream& out, const BadLayout& bad) { return out << bad.name; }

const BadLayout kBadLayouts[] = {
    {.name = "heads",
     .student = ", tp: 3",
     .message =
         "recipe.yaml:7: roles.student.world: world.tp 3 does not divide num_attention_heads 2"},
    {.name = "more_than_heads",
     .student = ", tp: 4",
     .message =
         "recipe.yaml:7: roles.student.world: world.tp 4 does not divide num_attention_heads 2"},
    {.name = "intermediate",
     .student = ", tp: 4",
     .config = {{"num_attention_heads", 4}, {"num_key_value_heads", 4}, {"intermediate_size", 18}},
     .message =
         "recipe.yaml:7: roles.student.world: world.tp 4 does not divide intermediate_size 18"},
    {.name = "key_value_heads",
     .student = ", tp: 2",
     .config = {{"num_attention_heads", 6}, {"num_key_value_heads", 3}},
     .message = "recipe.yaml:7: roles.student.world: world.tp 2 and num_key_value_heads 3 of the "
                "model: one must be a multiple"},
    {.name = "stages",
     .student = ", pp: 3",
     .message = "recipe.yaml:7: roles.student.world: world.pp 3 asks for more stages than the "
                "model has layers: 2"},
    {.name = "chunks",
     .student = ", pp: 2, virtual_pp: 2",
     .message = "recipe.yaml:7: roles.student.world: world.pp 2 times virtual_pp 2 asks for more "
                "stages than the model has"},
    {.name = "sequence_parallel_alone",
     .student = ", pp: 2, sequence_parallel: true",
     .message = "recipe.yaml:7: roles.student.world: world.sequence_parallel has no effect with "
                "world.tp 1"},
    {.name = "distributed_optimizer_alone",
     .student = ", tp: 2, distributed_optimizer: true",
     .message = "recipe.yaml:7: roles.student.world: world.distributed_optimizer has no effect "
                "with world.dp 1"},
    {.name = "teacher_with_optimizer",
     .teacher = ", distributed_optimizer: true",
     .message = "recipe.yaml:10: roles.teacher.world.distributed_optimizer: is for the role that "
                "trains; teacher serves"},
    {.name = "generator_with_stages",
     .generator = ", pp: 2",
     .message =
         "recipe.yaml:6: roles.generator.world.pp: a generator is not split over pipeline stages"},
    // More ranks than any host has devices; without the CUDA module that is what is missing.
    {.name = "cuda",
     .student = ", tp: 2, pp: 2, device: cuda",
     .exit_code = 3,
     .message = "recipe.yaml:7: roles.student.world.device: this build has no CUDA module"},
};

fs::path write_bad(const TemporaryFolder& folder, const BadLayout& bad) {
  if (!bad.generator.empty())
    return write_on_policy(
        folder.path(),
        {.data = write_prompts(folder), .generators = 2, .generator_world = bad.generator});
  GoldenRecipe recipe{.student_world = bad.student, .teacher_world = bad.teacher};
  if (!bad.teacher.empty()) recipe.teacher = "teacher", recipe.teacher_replicas = 2;
  if (!bad.config.empty()) {
    recipe.student = (folder / "model").string();
    fs::create_directory(recipe.student);
    nlohmann::json config = nlohmann::json::parse(read_file(goldens() / "qwen3/config.json"));
    config.update(bad.config);
    std::ofstream(folder / "model/config.json") << config;
  }
  return write_recipe(folder.path(), recipe);
}

class BadLayouts : public testing::TestWithParam<BadLayout> {};

TEST_P(BadLayouts, AreRefusedWithPlaceAndNumbers) {
  TemporaryFolder folder;
  // one may lie beside the program
  ::setenv("RETORT_CUDA_MODULE", "/nonexistent/libretort_cuda.so", 1);
  const auto result = retort({"launch", write_bad(folder, GetParam()).string()}, kDeadline);
  EXPECT_EQ(result.exit_code, GetParam().exit_code) << result.output;
  EXPECT_TRUE(holds(result.output, GetParam().message)) << result.output;
  EXPECT_FALSE(holds(result.output, "started, pid")) << result.output;
  EXPECT_FALSE(fs::exists(folder / "run"));
}
INSTANTIATE_TEST_SUITE_P(Table, BadLayouts, testing::ValuesIn(kBadLayouts),
                         [](const auto& info) { return info.param.name; });

// ---- what happens to ranks of a run

struct Split {
  std::string name;
  int64_t dp = 1, ranks = 4;
  std::string world;  // more of `world:`
  int64_t rank = 0;   // to whom it happens
};

std::ostream& operator<<(std::ostream& out, const Split& split) {
  return out << split.name << ", rank " << split.rank;
}

fs::path write_split(const fs::path& folder, const Split& split) {
  return write_recipe(folder, {.dp = split.dp,
                               .rows = 2,
                               .train_extra = "  save_total_limit: 2\n",
                               .student_world = split.world});
}

// The ranks among the launcher's children.
std::map<int64_t, int> rank_processes(int launcher) {
  std::map<int64_t, int> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string pid = entry.path().filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream stat(entry.path() / "stat"), line(entry.path() / "cmdline", std::ios::binary);
    std::string text, state, word, before;
    int parent = 0;
    std::getline(stat, text);
    std::istringstream(text.substr(std::min(text.size(), text.rfind(')') + 1))) >> state >> parent;
    if (parent != launcher) continue;
    for (; std::getline(line, word, '\0'); before = word)
      if (before == "--rank") found[std::stoll(word)] = std::stoi(pid);
  }
  return found;
}

// A run without end, as processes.
struct LiveRun {
  LiveRun(const fs::path& folder, const Split& split, std::vector<std::string> settings)
      : split(split), run(folder / "run"), recipe(write_split(folder, split)) {
    std::vector<std::string> args{retort_binary(), "launch", recipe.string(),
                                  "train.max_steps=1000000"};
    args.insert(args.end(), settings.begin(), settings.end());
    command = std::make_unique<Command>(args);
  }

  // Until step 7 is done, so that a checkpoint of each third step is there.
  bool trains() {
    const bool there = wait_until([&] {
      if (pids.size() < static_cast<size_t>(split.ranks)) pids = rank_processes(command->pid());
      return metrics_rows(run) >= 7 || !command->running();
    });
    return there && command->running() && pids.size() == static_cast<size_t>(split.ranks);
  }
  void signal(int number) const { ::kill(pids.at(split.rank), number); }
  std::string log(int64_t rank) const {
    const fs::path path = run / "logs" / ("student-" + std::to_string(rank) + ".log");
    return fs::exists(path) ? read_file(path) : "";
  }
  // The rank's own words name the group, itself and the operation that failed.
  bool names_its_collective(int64_t rank, const std::string& code = "collective|timeout") const {
    return std::regex_search(log(rank),
                             std::regex("\\[(" + code + ") group=student\\.[a-z_]+ rank=" +
                                        std::to_string(rank) + " op=[a-z_]+"));
  }
  std::vector<int64_t> survivors() const {
    std::vector<int64_t> ranks;
    for (int64_t rank = 0; rank < split.ranks; ++rank)
      if (rank != split.rank) ranks.push_back(rank);
    return ranks;
  }
  // Neither the ranks nor anything they started.
  void expect_nothing_left() const {
    for (const auto& [rank, pid] : pids)
      EXPECT_TRUE(wait_until([&] { return ::kill(-pid, 0) == -1 && errno == ESRCH; },
                             std::chrono::seconds(10)))
          << "rank " << rank;
    EXPECT_TRUE(all_gone(run.string()));
  }

  Split split;
  fs::path run, recipe;
  std::map<int64_t, int> pids;
  std::unique_ptr<Command> command;
};

// Goes on from the last checkpoint to some steps later: what a run without interruption gives, to
// the last bit.
void expect_resumes(const TemporaryFolder& folder, const LiveRun& live,
                    std::vector<std::string> settings) {
  const std::string steps = "train.max_steps=" + std::to_string(metrics_rows(live.run) + 4);
  settings.insert(settings.begin(), {"launch", live.recipe.string(), "--resume", steps});
  Command uninterrupted(
      {retort_binary(), "launch", write_split(folder / "whole", live.split).string(), steps});
  const auto resumed = retort(settings, kDeadline), whole = uninterrupted.wait(kDeadline);
  ASSERT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_TRUE(std::regex_search(resumed.output, std::regex("resuming .* at step [1-9]")))
      << resumed.output;
  ASSERT_EQ(whole.exit_code, 0) << whole.output;
  EXPECT_EQ(timeless_metrics(live.run), timeless_metrics(folder / "whole/run"));
  EXPECT_TRUE(read_file(live.run / "final/model.safetensors") ==
              read_file(folder / "whole/run/final/model.safetensors"));
}

class RankKilled : public testing::TestWithParam<Split> {};

// The timeout is longer than this test waits: the survivors see that the rank is gone.
TEST_P(RankKilled, IsNamedEndsAllAndTheRunResumes) {
  TemporaryFolder folder;
  LiveRun live(folder.path(), GetParam(), {"train.save_steps=3", "launch.collective_timeout=120s"});
  ASSERT_TRUE(live.trains()) << live.command->wait(std::chrono::seconds(0)).output;
  live.signal(SIGKILL);
  const auto result = live.command->wait(kDeadline);
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_TRUE(holds(result.output, "student/" + std::to_string(GetParam().rank) +
                                       " failed first: it was killed by signal 9"))
      << result.output;
  for (const int64_t rank : live.survivors())
    EXPECT_TRUE(live.names_its_collective(rank)) << rank << ": " << live.log(rank);
  live.expect_nothing_left();
  expect_resumes(folder, live, {"train.save_steps=3"});
}
INSTANTIATE_TEST_SUITE_P(
    Layouts, RankKilled,
    testing::Values(Split{.name = "tp_pp", .world = ", tp: 2, pp: 2", .rank = 3},
                    Split{.name = "tp_dp",
                          .dp = 2,
                          .world = ", tp: 2, sequence_parallel: true, distributed_optimizer: true",
                          .rank = 1},
                    Split{.name = "pp_dp", .dp = 2, .world = ", pp: 2", .rank = 0}),
    [](const auto& info) { return info.param.name; });

// Two runs at once, as all of them mostly wait.
TEST(RankHeld, IsTheOthersTimeoutAndEndsToo) {
  TemporaryFolder folder;
  constexpr std::chrono::seconds kTimeout(12);  // in which all must have begun, too
  const std::vector<std::string> settings{"train.save_steps=3", "launch.collective_timeout=12s"};
  LiveRun tp(folder / "tp", {.name = "tp", .ranks = 2, .world = ", tp: 2", .rank = 1}, settings);
  LiveRun tp_pp(folder / "tp_pp", {.name = "tp_pp", .world = ", tp: 2, pp: 2", .rank = 2},
                settings);
  for (LiveRun* live : {&tp, &tp_pp})
    ASSERT_TRUE(live->trains()) << live->command->wait(std::chrono::seconds(0)).output;
  for (const LiveRun* live : {&tp, &tp_pp})
    live->signal(SIGSTOP);
  const auto start = std::chrono::steady_clock::now();
  const auto all_named = [](const LiveRun& live) {
    const auto ranks = live.survivors();
    return std::all_of(ranks.begin(), ranks.end(),
                       [&](int64_t r) { return live.names_its_collective(r); });
  };
  EXPECT_TRUE(wait_until([&] { return all_named(tp) && all_named(tp_pp); }));
  // Not the time of one collective and then that of the next.
  EXPECT_LT(std::chrono::steady_clock::now() - start, 2 * kTimeout - std::chrono::seconds(1));
  for (LiveRun* live : {&tp, &tp_pp}) {
    SCOPED_TRACE(live->split.name);
    const auto ranks = live->survivors();
    const auto result = live->command->wait(kDeadline);
    EXPECT_EQ(result.exit_code, 1) << result.output;
    EXPECT_TRUE(std::any_of(ranks.begin(), ranks.end(), [&](int64_t r) {
      return live->names_its_collective(r, "timeout");
    })) << result.output;
    EXPECT_TRUE(holds(result.output, "student/" + std::to_string(live->split.rank) +
                                         " was held by a stop signal when student/"))
        << result.output;
    live->expect_nothing_left();
  }
}

// Held before it can have joined: a rank has a second thread from the first thing it does.
TEST(RankAbsent, IsNamedByAllOthers) {
  for (int attempt = 0; attempt < 10; ++attempt) {
    TemporaryFolder folder;
    LiveRun live(folder.path(), {.name = "tp_pp", .world = ", tp: 2, pp: 2", .rank = 2},
                 {"launch.collective_timeout=5s"});
    ASSERT_TRUE(wait_until([&] {
      live.pids = rank_processes(live.command->pid());
      if (!live.pids.contains(2)) return false;
      live.signal(SIGSTOP);
      return true;
    }));
    const fs::path tasks = fs::path("/proc") / std::to_string(live.pids.at(2)) / "task";
    if (std::distance(fs::directory_iterator(tasks), {}) > 1) continue;
    ASSERT_TRUE(wait_until([&] {
      live.pids = rank_processes(live.command->pid());
      return live.pids.size() == 4;
    }));
    const auto result = live.command->wait(kDeadline);
    EXPECT_EQ(result.exit_code, 1) << result.output;
    const std::regex missing(
        "role 'student': rank\\(s\\) ([013], )*2(, 3)? of 4 did not arrive within 5000 ms");
    for (const int64_t rank : live.survivors())
      EXPECT_TRUE(std::regex_search(live.log(rank), missing))
          << rank << ": " << live.log(rank) << result.output;
    EXPECT_TRUE(holds(result.output, "student/2 was held by a stop signal when student/"))
        << result.output;
    live.expect_nothing_left();
    return;
  }
  FAIL() << "the rank was always faster";
}

TEST(RankAskedToStop, StopsAllAtOneStepWithACheckpoint) {
  TemporaryFolder folder;
  LiveRun live(folder.path(), {.name = "tp_pp", .world = ", tp: 2, pp: 2", .rank = 3}, {});
  ASSERT_TRUE(live.trains()) << live.command->wait(std::chrono::seconds(0)).output;
  live.signal(SIGTERM);
  const auto result = live.command->wait(kDeadline);
  EXPECT_EQ(result.exit_code, 4) << result.output;
  EXPECT_TRUE(holds(result.output,
                    "stopped; continue with: retort launch " + live.recipe.string() + " --resume"))
      << result.output;
  EXPECT_FALSE(holds(result.output, "\ndone: ")) << result.output;
  const std::string step = std::to_string(metrics_rows(live.run));
  for (int64_t rank = 0; rank < 4; ++rank)
    EXPECT_TRUE(holds(result.output, "student/" + std::to_string(rank) +
                                         (rank == 3 ? " interrupted" : " stopped") +
                                         ": checkpoint saved at step " + step + "\n"))
        << result.output;
  std::set<std::string> checkpoints;
  for (const auto& entry : fs::directory_iterator(live.run))
    if (const std::string name = entry.path().filename().string();
        name.starts_with("checkpoint-") || name == "final")
      checkpoints.insert(name);
  EXPECT_EQ(checkpoints, std::set<std::string>{"checkpoint-" + step});
  EXPECT_TRUE(fs::exists(live.run / ("checkpoint-" + step) / "state/COMPLETE"));
  live.expect_nothing_left();
  expect_resumes(folder, live, {});
}

}  // namespace
}  // namespace retort::test

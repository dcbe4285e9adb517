// Bad input and broken peers against the real program: the stated message and exit code, and
// nothing hangs.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <functional>
#include <thread>

#include "base/file.h"
#include "tests/recipes/run_support/run_support.h"

namespace retort::test {
namespace {

constexpr auto kDeadline = std::chrono::seconds(30);

struct BadInput {
  std::string name;
  // changes the recipe or makes files beside it
  std::function<void(const TemporaryFolder&, GoldenRecipe&)> spoil;
  std::vector<std::string> overrides;
  int exit_code;
  std::string message;  // must appear in the output
};

void copy_model(const TemporaryFolder& folder, const std::string& from, const std::string& to) {
  fs::copy(goldens() / from, folder / to, fs::copy_options::recursive);
}

void append(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::app) << text;
}

void copy_rows_and_a_truncated_line(const TemporaryFolder& folder) {
  fs::copy_file(goldens() / "rows.jsonl", folder / "rows.jsonl");
  append(folder / "rows.jsonl", "{\"input_ids\": [1, 2");
}

std::vector<BadInput> table() {
  const auto nothing = [](const TemporaryFolder&, GoldenRecipe&) {};
  return {
      // Keys and values that are none, and files that are not there.
      {"unknown_key", nothing, {"train.learning_rat=1.0e-3"}, 2, "learning_rate"},
      {"wrong_type", nothing, {"train.max_steps=many"}, 2, "max_steps"},
      {"missing_model",
       nothing,
       {"roles.student.model=/nonexistent/model"},
       2,
       "/nonexistent/model"},
      {"missing_data",
       nothing,
       {"data.train=[{path: /nonexistent/rows.jsonl}]"},
       2,
       "/nonexistent/rows.jsonl"},

      // Keys that contradict each other.
      {"reverse_kl_with_drop",
       [](const TemporaryFolder&, GoldenRecipe& r) {
         r.teacher = "teacher";
         r.distill = {{"payload", "topk"}, {"tail", "drop"}, {"loss_type", "reverse_kl"}};
       },
       {},
       2,
       "tail"},
      {"jsd_with_renormalize",
       [](const TemporaryFolder&, GoldenRecipe& r) {
         r.teacher = "teacher";
         r.distill = {{"payload", "topk"}, {"tail", "renormalize"}, {"loss_type", "jsd"}};
       },
       {},
       2,
       "tail"},

      // Files that are damaged, of all ranks and of one.
      {"corrupt_safetensors",
       [](const TemporaryFolder& folder, GoldenRecipe&) {
         copy_model(folder, "qwen3", "broken");
         fs::resize_file(fs::path(folder / "broken") / "model.safetensors", 1000);
       },
       {"roles.student.model=$FOLDER/broken"},
       2,
       "model.safetensors"},
      {"truncated_line",
       [](const TemporaryFolder& folder, GoldenRecipe&) { copy_rows_and_a_truncated_line(folder); },
       {"data.train=[{path: $FOLDER/rows.jsonl}]", "train.max_steps=8"},
       2,
       "rows.jsonl:21"},
      {"truncated_line_of_one_rank",
       [](const TemporaryFolder& folder, GoldenRecipe& r) {
         copy_rows_and_a_truncated_line(folder);
         r.dp = 2;
       },
       {"data.train=[{path: $FOLDER/rows.jsonl}]", "train.max_steps=8"},
       2,
       "rows.jsonl:21"},
      {"truncated_line_of_one_rank_with_a_teacher",
       [](const TemporaryFolder& folder, GoldenRecipe& r) {
         copy_rows_and_a_truncated_line(folder);
         r.dp = 2;
         r.teacher = "teacher";
         r.distill = {{"payload", "full"}};
       },
       {"data.train=[{path: $FOLDER/rows.jsonl}]", "train.max_steps=8"},
       2,
       "rows.jsonl:21"},

      // Whole files that do not fit.
      {"no_targets",
       [](const TemporaryFolder& folder, GoldenRecipe&) {
         append(folder / "rows.jsonl",
                "{\"input_ids\": [1, 2, 3], \"labels\": [-100, -100, -100]}\n");
       },
       {"data.train=[{path: $FOLDER/rows.jsonl}]"},
       2,
       "rows.jsonl:1"},
      {"other_tokenizer",
       [](const TemporaryFolder& folder, GoldenRecipe& r) {
         r.teacher = "teacher";
         r.distill = {{"payload", "full"}};
         copy_model(folder, "teacher", "other");
         std::string text = read_file(fs::path(folder / "other") / "tokenizer.json");
         text.replace(text.find("\"w7\""), 4, "\"x7\"");
         std::ofstream(fs::path(folder / "other") / "tokenizer.json") << text;
       },
       {"roles.teacher.model=$FOLDER/other"},
       2,
       "tokenizer"},
  };
}

class BadInputs : public testing::TestWithParam<BadInput> {};

TEST_P(BadInputs, AreRefused) {
  TemporaryFolder folder;
  GoldenRecipe recipe;
  GetParam().spoil(folder, recipe);
  std::vector<std::string> args{"launch", write_recipe(folder.path(), recipe).string()};
  for (std::string text : GetParam().overrides) {
    if (const auto at = text.find("$FOLDER"); at != std::string::npos)
      text.replace(at, 7, folder.path().string());
    args.push_back(text);
  }
  const auto result = retort(args, kDeadline);
  EXPECT_EQ(result.exit_code, GetParam().exit_code) << result.output;
  EXPECT_NE(result.output.find(GetParam().message), std::string::npos) << result.output;
}
INSTANTIATE_TEST_SUITE_P(Table, BadInputs, testing::ValuesIn(table()),
                         [](const auto& info) { return info.param.name; });

// The first process whose command line has both words.
int find_process(const std::string& a, const std::string& b) {
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string pid = entry.path().filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "cmdline", std::ios::binary);
    std::string line((std::istreambuf_iterator<char>(file)), {});
    if (line.find(a) != std::string::npos && line.find(b) != std::string::npos)
      return std::stoi(pid);
  }
  return -1;
}

TEST(DeviceModule, ThatCannotBeOpenedIsNamed) {
  TemporaryFolder folder;
  const fs::path module = folder / "libretort_cuda.so";
  const std::string recipe = write_recipe(folder.path(), {}).string();
  ::setenv("RETORT_CUDA_MODULE", module.c_str(), 1);  // one may lie beside the program
  const auto missing = retort({"launch", recipe, "roles.student.world.device=cuda"}, kDeadline);
  EXPECT_EQ(missing.exit_code, 3) << missing.output;
  EXPECT_NE(missing.output.find("./dev build --cuda"), std::string::npos) << missing.output;
  append(module, "not a library");
  const auto broken = retort({"launch", recipe, "roles.student.world.device=cuda"}, kDeadline);
  ::unsetenv("RETORT_CUDA_MODULE");
  EXPECT_EQ(broken.exit_code, 3) << broken.output;
  EXPECT_NE(broken.output.find(module.string()), std::string::npos) << broken.output;
}

// A library without the functions of this version: that of C, which every process has.
TEST(DeviceModule, OfAnotherVersionIsNamed) {
  Dl_info library{};
  ASSERT_NE(::dladdr(::dlsym(RTLD_DEFAULT, "getpid"), &library), 0);
  TemporaryFolder folder;
  const std::string recipe = write_recipe(folder.path(), {}).string();
  ::setenv("RETORT_CUDA_MODULE", library.dli_fname, 1);
  const auto other = retort({"launch", recipe, "roles.student.world.device=cuda"}, kDeadline);
  ::unsetenv("RETORT_CUDA_MODULE");
  EXPECT_EQ(other.exit_code, 3) << other.output;
  for (const std::string part :
       {"another version of the program", library.dli_fname, "retort_cuda"})
    EXPECT_NE(other.output.find(part), std::string::npos) << part << "\n" << other.output;
}

TEST(TeacherKilled, EndsTheRunWithItsName) {
  TemporaryFolder folder;
  GoldenRecipe recipe{
      .teacher = "teacher", .steps = 100000, .distill = {{"payload", "hidden_states"}}};
  const fs::path path = write_recipe(folder.path(), recipe);
  Command run({retort_binary(), "launch", path.string(), "roles.teacher.restarts=0"});
  const fs::path metrics = folder / "run/metrics.jsonl";
  const auto end = std::chrono::steady_clock::now() + kDeadline;
  while (std::chrono::steady_clock::now() < end &&
         (!fs::exists(metrics) || fs::file_size(metrics) < 1000))
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const int teacher = find_process(folder.path().string(), std::string("--role\0teacher", 14));
  ASSERT_GT(teacher, 0);
  ::kill(teacher, SIGKILL);
  const auto result = run.wait(kDeadline);
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_NE(result.output.find("teacher/0"), std::string::npos) << result.output;
}

TEST(Overwrite, RefusesToRemoveWhatTheRunReads) {
  TemporaryFolder folder;
  const fs::path path = write_recipe(folder.path(), {.steps = 2});
  ASSERT_EQ(retort({"launch", path.string()}).exit_code, 0);
  const std::string final = (folder / "run/final").string();  // a link into the run's folder
  const auto result =
      retort({"launch", path.string(), "--overwrite", "roles.student.model=" + final});
  EXPECT_EQ(result.exit_code, 2) << result.output;
  EXPECT_NE(result.output.find("lies in output_dir"), std::string::npos) << result.output;
  EXPECT_TRUE(fs::exists(folder / "run/final/model.safetensors"));
  EXPECT_EQ(retort({"launch", path.string(), "--overwrite"}).exit_code, 0);
}

// `retort launch --overwrite` on one host, for which a shell script stands in for ssh.
CommandResult overwrite_by_ssh(const TemporaryFolder& folder, const fs::path& recipe,
                               const std::string& host, const std::string& script) {
  std::ofstream(folder / "ssh") << "#!/bin/sh\n" << script;
  fs::permissions(folder / "ssh", fs::perms::owner_all);
  Command run({"sh", "-c", "PATH=\"$0:$PATH\" exec \"$@\"", folder.path().string(), retort_binary(),
               "launch", recipe.string(), "--overwrite", "launch.backend=ssh",
               "launch.ssh.program=" + retort_binary(), "launch.hosts=[{host: " + host + "}]"});
  return run.wait(kDeadline);
}

// A host that does not answer is heard of while the run is still there that was to be replaced.
TEST(Overwrite, RemovesNothingWhereAHostIsMissing) {
  TemporaryFolder folder;
  const fs::path path = write_recipe(folder.path(), {.steps = 2});
  ASSERT_EQ(retort({"launch", path.string()}).exit_code, 0);
  const auto result =
      overwrite_by_ssh(folder, path, "gone", "echo 'no route to host' >&2\nexit 255\n");
  EXPECT_EQ(result.exit_code, 3) << result.output;
  EXPECT_NE(result.output.find("host gone could not be reached"), std::string::npos)
      << result.output;
  EXPECT_TRUE(fs::exists(folder / "run/final/model.safetensors"));
  EXPECT_TRUE(fs::exists(folder / "run/metrics.jsonl"));
}

// Hosts say something while the earlier run is still there; it is of the run that replaces that.
TEST(Overwrite, BeginsTheLogsOfHostsAnew) {
  TemporaryFolder folder;
  const fs::path path = write_recipe(folder.path(), {.steps = 2});
  const std::string runs =
      " >&2\nfor last; do :; done\nexport SSH_CONNECTION='127.0.0.1 1 127.0.0.1 2'\n"
      "exec sh -c \"$last\"\n";
  const fs::path log = folder / "run/logs/host-here.log";
  for (const std::string word : {"first", "second"}) {
    const auto result = overwrite_by_ssh(folder, path, "here", "echo " + word + runs);
    ASSERT_EQ(result.exit_code, 0) << result.output;
    EXPECT_NE(read_file(log).find(word), std::string::npos);
  }
  EXPECT_EQ(read_file(log).find("first"), std::string::npos) << read_file(log);

  // The run stays, and its log with it, where the next one cannot begin.
  const auto refused = overwrite_by_ssh(folder, path, "here", "echo no route >&2\nexit 255\n");
  EXPECT_EQ(refused.exit_code, 3) << refused.output;
  EXPECT_NE(read_file(log).find("second"), std::string::npos) << read_file(log);
  EXPECT_NE(read_file(log).find("no route"), std::string::npos) << read_file(log);
}

TEST(TooFewDescriptors, EndTheLaunchWithTheLimit) {
  TemporaryFolder folder;
  const fs::path path = write_recipe(folder.path(), {.steps = 1});
  std::ofstream(folder / "limited.sh") << "ulimit -n 20\nexec \"$@\"\n";
  Command run({"bash", (folder / "limited.sh").string(), retort_binary(), "launch", path.string()});
  const auto result = run.wait(kDeadline);
  EXPECT_EQ(result.exit_code, 3) << result.output;
  for (const char* part : {"may open 20 files and sockets, which is too few", "ulimit -Hn"})
    EXPECT_NE(result.output.find(part), std::string::npos) << part << ": " << result.output;
}

TEST(DiskFull, AtACheckpointKeepsTheLastGoodOne) {
  TemporaryFolder folder;
  GoldenRecipe recipe{.steps = 4};
  const fs::path path = write_recipe(folder.path(), recipe);
  ASSERT_EQ(retort({"launch", path.string(), "train.save_steps=2"}).exit_code, 0);
  // A file-size limit makes every larger write fail as a full disk does (EFBIG), in all processes
  // of the run.
  std::ofstream(folder / "limited.sh") << "trap '' XFSZ\nulimit -f 8\nexec \"$@\"\n";
  Command run({"bash", (folder / "limited.sh").string(), retort_binary(), "launch", path.string(),
               "train.save_steps=2", "train.max_steps=8", "--resume"});
  const auto result = run.wait(kDeadline);
  EXPECT_EQ(result.exit_code, 3) << result.output;
  EXPECT_NE(result.output.find("checkpoint"), std::string::npos) << result.output;
  EXPECT_TRUE(fs::exists(folder / "run/checkpoint-4/model.safetensors"));
  const auto again =
      retort({"launch", path.string(), "train.save_steps=2", "train.max_steps=8", "--resume"});
  EXPECT_EQ(again.exit_code, 0) << again.output;
}

}  // namespace
}  // namespace retort::test

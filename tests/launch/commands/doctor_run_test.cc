// `retort doctor` where something is really wrong: the line that says so, and the exit code. And
// where nothing is.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <map>

#include "launch/run_folder/run_folder.h"
#include "launch/status/status_file.h"
#include "tests/recipes/run_support/run_support.h"
#include "tests/support/wait_until.h"

namespace retort::test {
namespace {

// A port of loopback that somebody listens at.
class TakenPort {
 public:
  TakenPort() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(fd_, any, size), 0);
    EXPECT_EQ(::listen(fd_, 1), 0);
    EXPECT_EQ(::getsockname(fd_, any, &size), 0);
    text_ = std::to_string(ntohs(address.sin_port));
  }
  ~TakenPort() { ::close(fd_); }
  TakenPort(const TakenPort&) = delete;
  const std::string& text() const { return text_; }

 private:
  int fd_;
  std::string text_;
};

struct Diagnosis {
  int exit_code = -1;
  std::string output;
  std::map<std::string, nlohmann::json> findings;  // by their check
};

class DoctorRun : public ::testing::Test {
 protected:
  Diagnosis examine(const std::vector<std::string>& overrides = {},
                    const std::string& before = "") {
    std::vector<std::string> argv{
        "/bin/sh",       "-c",     before + "exec \"$0\" \"$@\"",
        retort_binary(), "doctor", write_recipe(folder_.path(), recipe_).string(),
        "--json"};
    argv.insert(argv.end(), overrides.begin(), overrides.end());
    const CommandResult result = Command(std::move(argv)).wait();
    Diagnosis diagnosis{.exit_code = result.exit_code, .output = result.output, .findings = {}};
    // What it logs stands before it.
    const size_t line = result.output.rfind('\n', result.output.size() - 2) + 1;
    const auto json =
        nlohmann::json::parse(result.output.substr(line), nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(json.is_object()) << result.output;
    if (!json.is_object()) return diagnosis;
    for (const auto& one : json.at("findings"))
      diagnosis.findings[one.at("check").get<std::string>()] = one;
    return diagnosis;
  }

  // Another role to talk with: without one no key of `rpc` has an effect.
  void with_teacher() {
    recipe_.teacher = "teacher";
    recipe_.distill = {{"payload", "hidden_states"}};
  }

  // The only problem, or a warning, of this check; with these words, and something to do.
  static void expect(const Diagnosis& found, const std::string& check, const std::string& verdict,
                     const std::string& words) {
    ASSERT_TRUE(found.findings.contains(check)) << found.output;
    const auto& finding = found.findings.at(check);
    EXPECT_EQ(finding.at("verdict"), verdict) << found.output;
    EXPECT_NE(finding.at("what").get<std::string>().find(words), std::string::npos) << finding;
    EXPECT_EQ(finding.at("action").get<std::string>().empty(), verdict == "ok") << finding;
    EXPECT_EQ(found.exit_code, verdict == "problem" ? 1 : 0) << found.output;
    for (const auto& [name, one] : found.findings) {
      if (name == check) continue;
      EXPECT_NE(one.at("verdict"), "problem") << one;
    }
  }

  const TemporaryFolder folder_;
  GoldenRecipe recipe_;
};

TEST_F(DoctorRun, NothingIsWrongAndNothingIsLeft) {
  with_teacher();
  const Diagnosis found = examine({"rpc.port=20000-60000"});
  expect(found, "output_dir", "ok", "can be made");
  for (const char* check :
       {"program", "cores", "memory", "shared memory", "descriptors", "locked memory", "devices",
        "address", "ports", "launcher's ports", "disk", "lock", "leftovers", "inputs"})
    EXPECT_TRUE(found.findings.contains(check)) << check;
  expect(found, "address", "ok", "at 127.0.0.1 (lo), not encrypted");
  expect(found, "ports", "ok", "for 2 processes");
  expect(found, "inputs", "ok", "3 paths");
  EXPECT_FALSE(fs::exists(folder_ / "run"));

  const CommandResult text = retort({"doctor", (folder_ / "recipe.yaml").string()});
  EXPECT_EQ(text.exit_code, 0) << text.output;
  EXPECT_NE(text.output.find("0 problems, "), std::string::npos) << text.output;
}

TEST_F(DoctorRun, WithoutARecipeTheHostAloneIsLookedAt) {
  const CommandResult result = retort({"doctor"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("127.0.0.1"), std::string::npos) << result.output;
  EXPECT_EQ(result.output.find("output_dir"), std::string::npos) << result.output;
}

TEST_F(DoctorRun, AWrongRecipeIsAnErrorOfItsOwn) {
  write_recipe(folder_.path(), recipe_);
  const CommandResult result = retort({"doctor", (folder_ / "recipe.yaml").string(), "seeed=1"});
  EXPECT_EQ(result.exit_code, 2) << result.output;
}

TEST_F(DoctorRun, PortsThatAreTaken) {
  with_teacher();
  const TakenPort taken;
  const std::string range = std::to_string(std::stoi(taken.text()) - 1) + "-" + taken.text();
  expect(examine({"rpc.port=" + range}), "ports", "problem",
         " free ports in rpc.port: " + range + " at 127.0.0.1, for 2 processes");
  expect(examine({"launch.metrics_port=" + taken.text()}), "launcher's ports", "problem",
         "launch.metrics_port: " + taken.text() + " at 127.0.0.1 cannot be listened at");
}

TEST_F(DoctorRun, AnInterfaceThatIsNotThere) {
  with_teacher();
  const Diagnosis found = examine({"rpc.bind=203.0.113.0/24"});
  EXPECT_EQ(found.exit_code, 1);
  EXPECT_EQ(found.findings.at("address").at("verdict"), "problem") << found.output;
  EXPECT_NE(found.output.find("no interface that is up has an address in 203.0.113.0/24"),
            std::string::npos)
      << found.output;
}

TEST_F(DoctorRun, TooFewDescriptors) {
  expect(examine({}, "ulimit -n 60; "), "descriptors", "problem",
         "may open 60 files and sockets; one of this run needs up to 70");
}

TEST_F(DoctorRun, ProcessesThatShareACore) {
  recipe_.dp = 2;
  cpu_set_t before, one;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core)
    if (CPU_ISSET(core, &before)) CPU_SET(core, &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  const Diagnosis found = examine();
  ::sched_setaffinity(0, sizeof before, &before);
  expect(found, "cores", "warning", "1 of ");
}

TEST_F(DoctorRun, AModelThatIsTooLarge) {
  fs::create_directory(folder_ / "large");
  auto config = nlohmann::json::parse(std::ifstream(goldens() / "qwen3" / "config.json"));
  config["intermediate_size"] = int64_t{1} << 34;
  std::ofstream(folder_ / "large" / "config.json") << config;
  recipe_.student = (folder_ / "large").string();
  const Diagnosis found = examine();
  EXPECT_EQ(found.exit_code, 1);
  EXPECT_EQ(found.findings.at("memory").at("verdict"), "problem") << found.output;
  EXPECT_EQ(found.findings.at("disk").at("verdict"), "problem") << found.output;
}

// A file system without room, where nobody may write.
TEST_F(DoctorRun, AFolderThatCannotBeWritten) {
  const Diagnosis found = examine({"output_dir=/proc/run"});
  EXPECT_EQ(found.exit_code, 1);
  EXPECT_EQ(found.findings.at("output_dir").at("verdict"), "problem") << found.output;
  EXPECT_EQ(found.findings.at("disk").at("verdict"), "problem") << found.output;
}

TEST_F(DoctorRun, AFolderThatARunUses) {
  const launch::RunFolder run(folder_ / "run", launch::RunFolderMode::kFresh);
  expect(examine(), "lock", "problem",
         "process " + std::to_string(::getpid()) + " of this host holds ");
}

TEST_F(DoctorRun, ARunThatLostItsLauncher) {
  { const launch::RunFolder run(folder_ / "run", launch::RunFolderMode::kFresh); }
  launch::RunStatus status;
  status.run = "run";
  std::ofstream(folder_ / "run" / launch::kStatusFile) << launch::encode_run_status(status);
  expect(examine(), "lock", "warning", "lost its launcher");
}

TEST_F(DoctorRun, AProcessThatWasLeft) {
  const std::string run = (folder_ / "run").string();
  Command left({"/bin/sh", "-c", "echo up; sleep 600; :", "retort", "role", "--run-folder", run});
  ASSERT_TRUE(wait_until([&] { return left.output() == "up\n"; }));
  expect(examine(), "leftovers", "problem", " " + std::to_string(left.pid()));
}

TEST_F(DoctorRun, AModelThatIsNotThere) {
  with_teacher();
  const std::string none = (folder_ / "none").string();
  const Diagnosis found = examine({"roles.teacher.model=" + none});
  EXPECT_EQ(found.exit_code, 1);
  EXPECT_EQ(found.findings.at("inputs").at("what"), "not there: roles.teacher.model: " + none);
}

TEST_F(DoctorRun, AnEngineThatDoesNotAnswer) {
  std::string port;
  {
    const TakenPort free_soon;
    port = free_soon.text();
  }
  recipe_.teacher = "teacher";
  recipe_.distill = {{"payload", "topk"}, {"loss_top_k", "4"}};
  const std::string url = "http://127.0.0.1:" + port;
  const Diagnosis found = examine({"roles.teacher={external: {engine: vllm, url: ['" + url +
                                   "'], tokenizer: " + (goldens() / "teacher").string() + "}}"});
  expect(found, "engine", "problem", "roles.teacher: vllm at " + url);
}

TEST_F(DoctorRun, WhatDevicesNeed) {
  if (fs::exists("/dev/nvidia0")) GTEST_SKIP() << "there is a device";
  recipe_.dp = 2;
  recipe_.student_world = ", device: cuda";
  const Diagnosis found = examine({}, "ulimit -l 64; ");
  expect(found, "devices", "problem", "");  // no module, none that loads, or no device
  EXPECT_EQ(found.findings.at("locked memory").at("verdict"), "warning") << found.output;
}

}  // namespace
}  // namespace retort::test

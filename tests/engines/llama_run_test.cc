// Whole runs with a real llama.cpp server as reference, teacher and generator, beside the same runs
// with roles of ours.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "base/file.h"
#include "tests/engines/engine_run.h"
#include "tests/support/source_folder.h"

namespace retort::test {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::json;

// A port that is free now: who listens there next is started right after.
int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool bound = ::bind(socket, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  ::close(socket);
  EXPECT_TRUE(bound);
  return ntohs(address.sin_port);
}

class LlamaRunTest : public EngineRunTest {
 protected:
  static void SetUpTestSuite() {
    if (!python()) return;
    make_files();
    must({"model", "export", file("model-2"), "--format", "gguf", "--output", file("2.gguf")});
  }
  static void TearDownTestSuite() { remove_files(); }
  void SetUp() override {
    if (!python()) GTEST_SKIP() << "RETORT_ENGINES_PYTHON names no Python with xllamacpp";
  }

  static const char* python() { return std::getenv("RETORT_ENGINES_PYTHON"); }

  // `external:` of a server that the run starts on `gguf`; `before`: shell commands before it.
  static std::string external(const std::string& gguf, const std::string& more = "",
                              const std::string& before = "") {
    const int port = free_port();
    const std::string server = before + "exec " + python() + " " +
                               (source_folder() / "tests/engines/llama_server.py").string() + " " +
                               gguf + " --slots 4 --context 128 --alias tiny --port " +
                               std::to_string(port);
    return "{engine: llamacpp, url: ['http://127.0.0.1:" + std::to_string(port) +
           "'], served_model: tiny, max_inflight: 8, timeout: 60s, load_timeout: 60s, "
           "tolerance: 1.0e-4, command: [sh, -c, '" +
           server + "'], " + more + "}";
  }
  static std::string frozen(const std::string& before = "") {
    return "external: " + external(file("2.gguf"), "tokenizer: " + file("model-2"), before);
  }
};

TEST_F(LlamaRunTest, ReferenceOfDpo) {
  const auto recipe = [](const std::string& reference) {
    return head("dpo", "reference", reference, "pairs.jsonl") + "dpo: {}\n";
  };
  const fs::path run = launched("dpo", recipe(frozen()));
  expect_same_losses(run, launched("dpo-ours", recipe(ours())), 1e-5);
  EXPECT_FALSE(Json::parse(read_file(run / "status.json")).at("reproducible").get<bool>());

  // What the probe found before the first step.
  const Json contract = Json::parse(read_file(run / "contracts/reference.json"));
  EXPECT_EQ(contract.at("ids"), "local_copy");
  EXPECT_LT(contract.at("local").at("largest").get<double>(), 1e-4);
}

TEST_F(LlamaRunTest, TeacherOfDistill) {
  for (const std::string options : {"", ", tail: renormalize, temperature: 2.0"}) {
    const auto recipe = [&](const std::string& teacher) {
      return head("distill", "teacher", teacher, "text.jsonl") +
             "distill: {payload: topk, loss_top_k: 16" + options + "}\n";
    };
    const std::string name = options.empty() ? "distill" : "distill-warm";
    const fs::path run = launched(name, recipe(frozen()));
    expect_same_losses(run, launched(name + "-ours", recipe(ours())), 1e-5);
    EXPECT_EQ(column(run, "teacher_tail_bound").size(), options.empty() ? 0u : 3u);
  }
}

std::string draws(const std::string& more, const std::string& how = "") {
  return "generation: {" + how +
         "num_generations: 4, max_new_tokens: 6, save_samples: true}\n"
         "rewards: [{type: length, min: 2, max: 4}]\n" +
         more;
}

TEST_F(LlamaRunTest, GeneratorOfGrpoFollowsTheStudent) {
  const std::string weights = file("grpo-weights");
  const std::string generator =
      "external: " +
      external(weights + "/tiny.gguf",
               "tokenizer: " + file("model-1") +
                   ", weights: {via: gguf, canary_tokens: 48, folder: " + weights + "}");
  const fs::path run =
      launched("grpo", head("grpo", "generator", generator, "prompts.jsonl") + draws("grpo: {}\n"));
  expect_receipts(run, 3);
  expect_own_log_probs(run);
  const Json contract = Json::parse(read_file(run / "contracts/generator.json"));
  EXPECT_EQ(contract.at("drawn"), "raw");
  EXPECT_TRUE(contract.at("seeds_repeat").get<bool>());
}

TEST_F(LlamaRunTest, GeneratorOfRejectionSampling) {
  const std::string weights = file("rejection-weights");
  const std::string generator =
      "external: " +
      external(weights + "/tiny.gguf",
               "tokenizer: " + file("model-1") + ", weights: {via: gguf, folder: " + weights + "}");
  const fs::path run =
      launched("rejection", head("rejection_sampling", "generator", generator, "prompts.jsonl") +
                                draws("rejection_sampling: {rounds: 3, prompts_per_round: 4}\n",
                                      "temperature: 0.8, top_p: 0.9, "));
  EXPECT_EQ(lines_of(run / "receipts.jsonl").size(), 3u) << "one for each round";

  // The server's numbers are the model's; of the distribution that was drawn from none are known.
  const std::vector<Json> samples = lines_of(run / "samples/step-1-rank-0.jsonl");
  ASSERT_EQ(samples.size(), 16u);
  for (const Json& sample : samples) {
    EXPECT_EQ(sample.at("logps").size(), sample.at("token_ids").size());
    EXPECT_TRUE(sample.at("sampling_logps").is_null()) << sample;
  }
}

// Killed in the middle: the role begins anew with its engine, and no number changes.
TEST_F(LlamaRunTest, KilledEngineIsStartedAgain) {
  const std::string pid_file = file("engine.pid");
  const auto recipe = [](const std::string& reference) {
    std::string text = head("dpo", "reference", reference, "pairs.jsonl") + "dpo: {prefetch: 1}\n";
    return text.replace(text.find("max_steps: 3"), 12, "max_steps: 16");
  };
  fs::path run;
  CommandResult result;
  bool was_killed = false;
  for (int tried = 1; tried <= 5 && !was_killed; ++tried) {  // again where it was over before
    const std::string name = "killed" + std::to_string(tried);
    run = file(name);
    const fs::path path = written(name, recipe(frozen("echo $$ > " + pid_file + "; ")));
    Command launch({retort_binary(), "launch", path});
    while (launch.running() && lines_of(run / "metrics.jsonl").empty())
      std::this_thread::sleep_for(1ms);
    was_killed = launch.running() && lines_of(run / "metrics.jsonl").size() < 16 &&
                 ::kill(std::stoi(read_file(pid_file)), SIGKILL) == 0;
    result = launch.wait(120s);
    ASSERT_EQ(result.exit_code, 0) << result.output;
  }
  EXPECT_NE(result.output.find("1 of 3 times"), std::string::npos) << result.output;
  expect_same_losses(run, launched("killed-ours", recipe(ours())), 1e-5);
}

TEST_F(LlamaRunTest, AnotherModelIsRefused) {
  must({"model", "init", "--arch", "qwen3", "--tokenizer", file("tokenizer"), "--vocab-size", "384",
        "--output", file("wide"), "--hidden-size", "64", "--num-hidden-layers", "1",
        "--num-attention-heads", "2"});
  must({"model", "export", file("wide"), "--format", "gguf", "--output", file("wide.gguf")});
  const std::string wide =
      "restarts: 0, external: " + external(file("wide.gguf"), "tokenizer: " + file("model-2"));
  const fs::path path =
      written("other", head("dpo", "reference", wide, "pairs.jsonl") + "dpo: {}\n");
  const CommandResult result = retort({"launch", path}, 120s);
  EXPECT_NE(result.exit_code, 0);
  EXPECT_NE(result.output.find("another model"), std::string::npos) << result.output;
}

TEST_F(LlamaRunTest, CommandThatEndsIsSaid) {
  const std::string ended =
      "restarts: 0, external: {engine: llamacpp, url: ['http://127.0.0.1:9'], tokenizer: " +
      file("model-2") + ", command: ['false']}";
  const fs::path path =
      written("ends", head("dpo", "reference", ended, "pairs.jsonl") + "dpo: {}\n");
  const CommandResult result = retort({"launch", path}, 120s);
  EXPECT_NE(result.exit_code, 0);
  EXPECT_NE(result.output.find("the engine's command exited with code 1"), std::string::npos)
      << result.output;
  // The student waits for the role: it heeds the request to stop.
  EXPECT_EQ(result.output.find("signal 9"), std::string::npos) << result.output;
}

}  // namespace
}  // namespace retort::test

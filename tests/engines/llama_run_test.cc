// Whole runs with a real llama.cpp server as reference, teacher and generator, beside the same runs
// with roles of ours.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <thread>

#include "base/file.h"
#include "tests/recipes/run_support.h"
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

std::vector<Json> lines_of(const fs::path& file) {
  std::vector<Json> lines;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);)
    lines.push_back(Json::parse(line));
  return lines;
}

// Two small models with one tokenizer, and rows for each recipe.
class LlamaRunTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!python()) return;
    files_ = new TemporaryFolder;
    make_rows();
    must({"tokenizer", "train", "--data", file("text.jsonl"), "--vocab-size", "300", "--output",
          file("tokenizer")});
    for (const std::string seed : {"1", "2"})
      must({"model", "init", "--arch", "qwen3", "--tokenizer", file("tokenizer"), "--output",
            file("model-" + seed), "--hidden-size", "64", "--num-hidden-layers", "2",
            "--num-attention-heads", "2", "--initializer-range", "0.1", "--seed", seed});
    must({"model", "export", file("model-2"), "--format", "gguf", "--output", file("2.gguf")});
  }
  static void TearDownTestSuite() { delete files_; }
  void SetUp() override {
    if (!python()) GTEST_SKIP() << "RETORT_ENGINES_PYTHON names no Python with xllamacpp";
  }

  static const char* python() { return std::getenv("RETORT_ENGINES_PYTHON"); }
  static std::string file(const std::string& name) { return files_->path() / name; }
  static void must(std::vector<std::string> arguments) {
    const CommandResult result = retort(std::move(arguments));
    ASSERT_EQ(result.exit_code, 0) << result.output;
  }
  static void make_rows() {
    const std::vector<std::string> words{"the", "cat", "sees", "two", "red", "dogs", "and", "runs"};
    std::ofstream text(file("text.jsonl")), prompts(file("prompts.jsonl")),
        pairs(file("pairs.jsonl"));
    for (size_t i = 0; i < 64; ++i) {
      std::string sentence;
      for (size_t k = 0; k < 6; ++k)
        sentence += (k ? " " : "") + words[(i * (k + 3) + k * k) % words.size()];
      const std::string word = words[i % words.size()];
      text << Json{{"text", sentence}} << "\n";
      prompts << Json{{"prompt", sentence}, {"completion", " " + word}} << "\n";
      pairs << Json{{"prompt", sentence}, {"chosen", " " + word}, {"rejected", " the the"}} << "\n";
    }
  }

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
  static std::string ours() { return "model: " + file("model-2"); }

  static std::string head(const std::string& recipe, const std::string& role,
                          const std::string& other, const std::string& rows) {
    return "recipe: " + recipe + "\nroles:\n  student: {model: " + file("model-1") + "}\n  " +
           role + ": {" + other + "}\ndata: {train: [{path: " + file(rows) +
           "}], max_length: 48}\n"
           "train: {max_steps: 3, per_device_train_batch_size: 4, learning_rate: 1.0e-3}\n";
  }
  // The run's folder.
  static fs::path launched(const std::string& name, const std::string& text) {
    const fs::path recipe = file(name + ".yaml"), run = file(name);
    write_file_atomically(recipe, "output_dir: " + run.string() + "\n" + text);
    const CommandResult result = retort({"launch", recipe}, 120s);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return run;
  }
  static void expect_same_losses(const fs::path& got, const fs::path& expected, double tolerance) {
    const auto losses = column(got, "loss"), wanted = column(expected, "loss");
    ASSERT_GE(losses.size(), 3u);
    ASSERT_EQ(losses.size(), wanted.size());
    for (size_t i = 0; i < losses.size(); ++i)
      EXPECT_NEAR(losses[i], wanted[i], tolerance * std::abs(wanted[i])) << "step " << i + 1;
  }

 private:
  static TemporaryFolder* files_;
};
TemporaryFolder* LlamaRunTest::files_ = nullptr;

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

std::string draws(const std::string& more) {
  return "generation: {num_generations: 4, max_new_tokens: 6, save_samples: true}\n"
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
  const std::vector<Json> receipts = lines_of(run / "receipts.jsonl");
  ASSERT_EQ(receipts.size(), 3u) << "one for each version";
  for (size_t i = 0; i < receipts.size(); ++i) {
    EXPECT_EQ(receipts[i].at("weight_version"), i + 1);
    EXPECT_TRUE(receipts[i].at("accepted").get<bool>());
    EXPECT_LT(receipts[i].at("largest_difference").get<double>(), 1e-4);
    EXPECT_GT(receipts[i].at("tokens").get<int>(), 48);
  }

  const Json contract = Json::parse(read_file(run / "contracts/generator.json"));
  EXPECT_EQ(contract.at("drawn"), "raw");
  EXPECT_TRUE(contract.at("seeds_repeat").get<bool>());

  // The trainer's own probabilities of what was drawn are the engine's.
  for (const double difference : column(run, "sampling_logp_difference/mean"))
    EXPECT_LT(difference, 1e-4);
  for (const double size : column(run, "sampling_ratio/effective_sample_size"))
    EXPECT_GT(size, 0.999);
}

TEST_F(LlamaRunTest, GeneratorOfRejectionSampling) {
  const std::string weights = file("rejection-weights");
  const std::string generator =
      "external: " +
      external(weights + "/tiny.gguf",
               "tokenizer: " + file("model-1") + ", weights: {via: gguf, folder: " + weights + "}");
  const fs::path run =
      launched("rejection", head("rejection_sampling", "generator", generator, "prompts.jsonl") +
                                draws("rejection_sampling: {rounds: 3, prompts_per_round: 4}\n"));
  EXPECT_EQ(lines_of(run / "receipts.jsonl").size(), 3u) << "one for each round";
}

// Killed in the middle: the role begins anew with its engine, and no number changes.
TEST_F(LlamaRunTest, KilledEngineIsStartedAgain) {
  const std::string pid_file = file("engine.pid");
  const auto recipe = [](const std::string& reference) {
    std::string text = head("dpo", "reference", reference, "pairs.jsonl") + "dpo: {prefetch: 1}\n";
    return text.replace(text.find("max_steps: 3"), 12, "max_steps: 16");
  };
  const fs::path path = file("killed.yaml"), run = file("killed");
  write_file_atomically(
      path, "output_dir: " + run.string() + "\n" + recipe(frozen("echo $$ > " + pid_file + "; ")));
  Command launch({retort_binary(), "launch", path});
  while (launch.running() && lines_of(run / "metrics.jsonl").empty())
    std::this_thread::sleep_for(1ms);
  ::kill(std::stoi(read_file(pid_file)), SIGKILL);

  const CommandResult result = launch.wait(120s);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("1 of 3 times"), std::string::npos) << result.output;
  expect_same_losses(run, launched("killed-ours", recipe(ours())), 1e-5);
}

TEST_F(LlamaRunTest, AnotherModelIsRefused) {
  must({"model", "init", "--arch", "qwen3", "--tokenizer", file("tokenizer"), "--vocab-size", "384",
        "--output", file("wide"), "--hidden-size", "64", "--num-hidden-layers", "1",
        "--num-attention-heads", "2"});
  must({"model", "export", file("wide"), "--format", "gguf", "--output", file("wide.gguf")});
  const fs::path path = file("other.yaml");
  write_file_atomically(path,
                        "output_dir: " + file("other") + "\n" +
                            head("dpo", "reference",
                                 "restarts: 0, external: " +
                                     external(file("wide.gguf"), "tokenizer: " + file("model-2")),
                                 "pairs.jsonl") +
                            "dpo: {}\n");
  const CommandResult result = retort({"launch", path}, 120s);
  EXPECT_NE(result.exit_code, 0);
  EXPECT_NE(result.output.find("another model"), std::string::npos) << result.output;
}

TEST_F(LlamaRunTest, CommandThatEndsIsSaid) {
  const fs::path path = file("ends.yaml");
  write_file_atomically(
      path,
      "output_dir: " + file("ends") + "\n" +
          head(
              "dpo", "reference",
              "restarts: 0, external: {engine: llamacpp, url: ['http://127.0.0.1:9'], tokenizer: " +
                  file("model-2") + ", command: ['false']}",
              "pairs.jsonl") +
          "dpo: {}\n");
  const CommandResult result = retort({"launch", path}, 120s);
  EXPECT_NE(result.exit_code, 0);
  EXPECT_NE(result.output.find("the engine's command exited with code 1"), std::string::npos)
      << result.output;
}

}  // namespace
}  // namespace retort::test

// Whole runs with the real Triton as teacher, reference and reward, beside the same runs with roles
// and rewards of ours. RETORT_TRITON_PYTHON: a Python with Triton's wheel; `./dev test -L engines`
// sets it.
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "base/file.h"
#include "engines/contract/engine.h"
#include "engines/contract/options.h"
#include "engines/make_engine.h"
#include "models/checkpoint/checkpoint.h"
#include "models/generation/score.h"
#include "tests/engines/engine_run.h"
#include "tests/recipes/run_support/on_policy_support.h"
#include "tests/support/process.h"
#include "tests/support/source_folder.h"

namespace retort::test {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::json;

constexpr double kTolerance = 1e-5;

// One server for all tests, on model-2. Each run gets the weights that it names in `tokenizer`.
class TritonRunTest : public EngineRunTest {
 protected:
  static void SetUpTestSuite() {
    const char* python = std::getenv("RETORT_TRITON_PYTHON");
    if (python == nullptr) return;
    make_files();
    change_one_weight();
    const fs::path script = source_folder() / "tests/engines/triton_server.py";
    server_ = std::make_unique<ChildProcess>(
        ChildProcess::spawn({.args = {script.string(), file("model-2")}, .program = python}));
    address_ = server_->read_line(Deadline::after(4min));
  }
  static void TearDownTestSuite() {
    if (!server_) return;
    server_->close_stdin();
    EXPECT_EQ(server_->wait(Deadline::after(2min)), 0);
    server_.reset();
    remove_files();
  }
  void SetUp() override {
    if (!server_) GTEST_SKIP() << "RETORT_TRITON_PYTHON is not set; ./dev test -L engines sets it";
    serve("model-2");
  }

  // Makes the server load that folder, as whoever runs it would. A load ends the model's process
  // and starts another, and Triton's back-end aborts the server where that takes it too long for a
  // lock: not done without need.
  static void serve(const std::string& model) {
    if (served_ == model) return;
    engines::ExternalOptions options{.engine = engines::EngineKind::kKserve,
                                     .served_model = "small"};
    options.weights.via = engines::WeightRoute::kRepository;
    const auto engine = engines::make_engine(options, address_, "");
    engine->state(Deadline::after(1min)).get();
    engine->load_weights(file(model), Deadline::after(1min)).get();
    served_ = model;
  }

  // A role that the server plays, whose weights the run believes to be those of `model`.
  static std::string triton(const std::string& model) {
    return "external: {engine: kserve, url: ['" + address_ +
           "'], served_model: small, timeout: 60s, load_timeout: 60s, tolerance: 1.0e-4, "
           "tokenizer: " +
           file(model) + "}";
  }
  static std::string distill(const std::string& teacher, const std::string& options) {
    return head("distill", "teacher", teacher, "text.jsonl") + "distill: {" + options + "}\n";
  }
  static std::string dpo(const std::string& reference) {
    return head("dpo", "reference", reference, "pairs.jsonl") + "dpo: {}\n";
  }

  // The role `judge` that the server plays with one of its models.
  static std::string judge(const std::string& model) {
    return "judge: {external: {engine: kserve, url: ['" + address_ + "'], served_model: " + model +
           ", timeout: 60s, load_timeout: 60s, tokenizer: " + file("model-2") + "}}";
  }
  // A program whose score is the second number of the model `lengths`.
  static std::string lengths_command() {
    const std::string program = file("lengths.py");
    write_file_atomically(program,
                          "import json, sys\n"
                          "for line in sys.stdin:\n"
                          "    row = json.loads(line)\n"
                          "    score = float(2 <= row['num_tokens'] <= 4)\n"
                          "    print(json.dumps({'id': row['id'], 'score': score}), flush=True)\n");
    return "{type: command, argv: ['" + std::string(std::getenv("RETORT_TRITON_PYTHON")) + "', " +
           program + "]}";
  }

  // The contract shows that the probe compared the engine before the first step.
  static void expect_compared(const fs::path& run, const std::string& role) {
    const Json contract = Json::parse(read_file(run / "contracts" / (role + ".json")));
    EXPECT_EQ(contract.at("ids"), "local_copy");
    EXPECT_LT(contract.at("local").at("largest").get<double>(), kTolerance);
    EXPECT_FALSE(Json::parse(read_file(run / "status.json")).at("reproducible").get<bool>());
  }

 private:
  // The folder `changed` is model-2 but for one number of one matrix.
  static void change_one_weight() {
    const models::Decoder decoder = models::load_decoder(file("model-2"), at::kFloat);
    size_t changes = 0;
    for (const auto& parameter : decoder.parameters()) {
      if (parameter.name != "model.layers.0.mlp.down_proj.weight") continue;
      parameter.value[3][5] += 6;
      ++changes;
    }
    ASSERT_EQ(changes, 1u);
    fs::create_directory(file("changed"));
    models::save_decoder(decoder, at::kFloat, file("model-2"), file("changed"));
  }

  inline static std::unique_ptr<ChildProcess> server_;
  inline static std::string address_;
  inline static std::string served_ = "model-2";
};

TEST_F(TritonRunTest, TeacherOfTopK) {
  const std::string options = "payload: topk, loss_top_k: 16";
  const fs::path run = launched("topk", distill(triton("model-2"), options));
  expect_same_losses(run, launched("topk-ours", distill(ours(), options)), kTolerance);
  expect_compared(run, "teacher");
}

TEST_F(TritonRunTest, TeacherOfTopKAtAnotherTemperature) {
  const std::string options = "payload: topk, loss_top_k: 16, tail: renormalize, temperature: 2.0";
  expect_same_losses(launched("warm", distill(triton("model-2"), options)),
                     launched("warm-ours", distill(ours(), options)), kTolerance);
}

TEST_F(TritonRunTest, TeacherOfHiddenStates) {
  const std::string options = "payload: hidden_states";
  const fs::path run = launched("hidden", distill(triton("model-2"), options));
  expect_same_losses(run, launched("hidden-ours", distill(ours(), options)), kTolerance);
  expect_compared(run, "teacher");
}

TEST_F(TritonRunTest, ReferenceOfDpo) {
  const fs::path run = launched("dpo", dpo(triton("model-2")));
  expect_same_losses(run, launched("dpo-ours", dpo(ours())), kTolerance);
  expect_compared(run, "reference");
}

// The first loss has the student as it was: what differs there is the teacher.
TEST_F(TritonRunTest, OneWeightChangesTheLoss) {
  const std::map<std::string, std::string> payloads{{"of-topk", "payload: topk, loss_top_k: 16"},
                                                    {"of-hidden", "payload: hidden_states"}};
  std::map<std::string, double> before;
  for (const auto& [name, options] : payloads)
    before[name] = column(launched(name, distill(triton("model-2"), options)), "loss").at(0);

  serve("changed");
  for (const auto& [name, options] : payloads) {
    const fs::path after = launched(name + "-changed", distill(triton("changed"), options));
    const double was = before.at(name), is = column(after, "loss").at(0);
    EXPECT_GT(std::abs(is - was), 20 * kTolerance * std::abs(was));
    std::cout << name << ": first loss " << was << ", then " << is << "\n";

    const std::string changed = "model: " + file("changed");
    expect_same_losses(after, launched(name + "-ours", distill(changed, options)), kTolerance);
  }
}

TEST_F(TritonRunTest, RewardOfGrpoIsThatOfACommand) {
  const fs::path run =
      launched("lengths", grpo("{type: model, role: judge, label: 1}", judge("lengths")));
  const fs::path ours = launched("lengths-ours", grpo(lengths_command()));
  expect_learnt(run);
  expect_same_losses(run, ours, 0);
  EXPECT_EQ(column(run, "reward"), column(ours, "reward"));
  std::cout << "mean reward of the steps: " << testing::PrintToString(column(run, "reward"))
            << "\n";
}

// The mean log-probability of each completion, as the decoder of that folder computes it here.
TEST_F(TritonRunTest, RewardIsWhatTheModelComputes) {
  const fs::path run = launched("scored", grpo("{type: model, role: judge}", judge("small")));
  const models::Decoder decoder = models::load_decoder(file("model-2"), at::kFloat);
  double largest = 0;
  size_t samples = 0;
  for (const auto& saved : fs::directory_iterator(run / "samples")) {
    std::ifstream lines(saved.path());
    for (std::string line; std::getline(lines, line); ++samples) {
      const Json sample = Json::parse(line);
      auto ids = sample.at("prompt_ids").get<std::vector<int32_t>>();
      const auto prompt = static_cast<int64_t>(ids.size());
      for (const int32_t id : sample.at("token_ids"))
        ids.push_back(id);

      const auto given =
          models::score(decoder, {.sequences = {ids}, .prompt_lengths = {prompt}})[0];
      double mean = 0;
      for (const float log_prob : given)
        mean += double{log_prob} / static_cast<double>(given.size());
      const double reward = sample.at("reward").get<double>();
      EXPECT_NEAR(reward, mean, kTolerance * std::abs(mean));
      largest = std::max(largest, std::abs(reward - mean) / std::abs(mean));
    }
  }
  EXPECT_EQ(samples, 3u * 4u);
  std::cout << samples << " rewards differ by " << largest << " of themselves at most\n";
}

// Its process is killed in the middle: the run goes on with the same numbers.
TEST_F(TritonRunTest, RewardRoleThatIsKilledComesBack) {
  constexpr int64_t kSteps = 200;
  const fs::path run = file("killed");
  Command launch(
      {retort_binary(), "launch",
       written("killed", grpo("{type: model, role: judge, label: 1}", judge("lengths"), kSteps))
           .string()});
  ASSERT_TRUE(wait_until([&] { return metrics_rows(run) >= 3; }, 60s));
  const int pid = role_process(run.parent_path(), "judge");
  ASSERT_GT(pid, 0);
  ::kill(pid, SIGKILL);
  const CommandResult result = launch.wait(180s);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("1 of 3 times"), std::string::npos) << result.output;
  expect_same_losses(run, launched("killed-ours", grpo(lengths_command(), "", kSteps)), 0);
  expect_learnt(run);
}

// Weights that give other numbers than the folder's are found before the first step.
TEST_F(TritonRunTest, ChangedWeightsUnderTheOldFolderAreRefused) {
  serve("changed");
  const std::string teacher = "restarts: 0, " + triton("model-2");
  const CommandResult result = retort(
      {"launch", written("refused", distill(teacher, "payload: topk, loss_top_k: 16"))}, 120s);
  EXPECT_NE(result.exit_code, 0);
  EXPECT_NE(result.output.find("the engine serves another model"), std::string::npos)
      << result.output;
  EXPECT_FALSE(fs::exists(fs::path(file("refused")) / "metrics.jsonl") &&
               !column(file("refused"), "loss").empty());
}

}  // namespace
}  // namespace retort::test

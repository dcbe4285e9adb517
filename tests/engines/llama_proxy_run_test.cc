// Whole runs of dpo whose reference is a real llama.cpp server behind a proxy that fails in the
// middle: another replica takes over, or the run waits, or it ends and says why. No loss is wrong.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <fstream>
#include <memory>
#include <thread>

#include "base/file.h"
#include "tests/engines/llamacpp/real_server.h"
#include "tests/engines/llamacpp/rewrites.h"
#include "tests/recipes/run_support/run_support.h"

namespace retort::engines {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using retort::test::Authority, retort::test::reply, retort::test::ScriptedServer;
using retort::test::CommandResult, retort::test::Peer;
using test::Passing, test::Proxying, test::RealServer, test::RewritingProxy, test::TinyModel;
namespace fs = std::filesystem;

constexpr int kBefore = 20;  // completions of the run that are answered as they should be
constexpr int kSteps = 6;

class ProxyRun : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!test::engines_python()) return;
    files_ = new retort::test::TemporaryFolder;
    student_ = new TinyModel(4);
    model_ = new TinyModel(3);
    server_ = new RealServer(model_->gguf(), {"--slots", "4", "--context", "128"});
    std::ofstream pairs(*files_ / "pairs.jsonl");
    for (int i = 0; i < 32; ++i)
      pairs << json{{"prompt", std::to_string(i) + " + 7 ="},
                    {"chosen", " " + std::to_string(i + 7)},
                    {"rejected", " 3 3"}}
            << "\n";
    pairs.close();
    const CommandResult ours = launched("ours", "model: " + model_->folder().string());
    EXPECT_EQ(ours.exit_code, 0) << ours.output;
  }
  static void TearDownTestSuite() {
    delete server_;
    delete model_;
    delete student_;
    delete files_;
  }
  void SetUp() override {
    if (!test::engines_python()) GTEST_SKIP() << "RETORT_ENGINES_PYTHON is not set";
  }

  static fs::path run(const std::string& name) { return *files_ / name; }
  static CommandResult launched(const std::string& name, const std::string& reference,
                                int steps = kSteps) {
    const fs::path recipe = *files_ / (name + ".yaml");
    write_file_atomically(
        recipe,
        "output_dir: " + run(name).string() + "\nrecipe: dpo\nroles:\n  student: {model: " +
            student_->folder().string() + "}\n  reference: {" + reference +
            "}\ndata: {train: [{path: " + (*files_ / "pairs.jsonl").string() +
            "}], max_length: 32}\ndpo: {prefetch: 1}\ntrain: {max_steps: " + std::to_string(steps) +
            ", per_device_train_batch_size: 4, learning_rate: 1.0e-3}\n");
    return retort::test::retort({"launch", recipe}, 240s);
  }
  static std::string external(const std::vector<std::string>& urls,
                              const std::string& more = ", tolerance: 1.0e-4") {
    std::string list;
    for (const std::string& url : urls)
      list += (list.empty() ? "'" : ", '") + url + "'";
    return "restarts: 1, external: {engine: llamacpp, url: [" + list +
           "], max_inflight: 8, tokenizer: " + model_->folder().string() + more + "}";
  }
  // True once this run's reference has been probed and kBefore more completions have passed.
  static std::function<bool()> midway(const std::string& name, bool one_of_two) {
    const fs::path contract =
        run(name) / "contracts" / (one_of_two ? "reference-0.json" : "reference.json");
    const auto seen = std::make_shared<std::atomic<int>>(0);
    return [=] { return fs::exists(contract) && (*seen)++ >= kBefore; };
  }

  // Each one that was written is that of the run without an engine.
  static void expect_right_losses(const std::string& name, size_t at_least) {
    const auto wanted = retort::test::column(run("ours"), "loss");
    ASSERT_EQ(wanted.size(), static_cast<size_t>(kSteps));
    std::vector<double> got;
    if (fs::exists(run(name) / "metrics.jsonl")) got = retort::test::column(run(name), "loss");
    ASSERT_GE(got.size(), at_least);
    ASSERT_LE(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], wanted[i], 1e-5 * std::abs(wanted[i])) << "step " << i + 1;
  }
  // Two replicas, the first of which fails midway and for good.
  static void expect_taken_over(const std::string& name, Proxying faults,
                                const std::string& more = ", tolerance: 1.0e-4") {
    const RewritingProxy first(server_->url(), std::move(faults)), second(server_->url());
    const CommandResult result = launched(name, external({first.url(), second.url()}, more));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_NE(result.output.find("reference/0 exited"), std::string::npos) << "nothing failed";
    expect_right_losses(name, kSteps);
  }
  // The message says `part`, the role and the address.
  static void expect_said(const CommandResult& result, const std::string& part,
                          const std::string& url) {
    EXPECT_NE(result.exit_code, 0);
    for (const std::string& text : {part, url.substr(0, url.size() - 1), std::string("reference")})
      EXPECT_NE(result.output.find(text), std::string::npos) << text << "\n" << result.output;
  }
  static void expect_ended(const std::string& name, Proxying faults, const std::string& part) {
    const RewritingProxy proxy(server_->url(), std::move(faults));
    expect_said(launched(name, external({proxy.url()})), part, proxy.url());
    expect_right_losses(name, 0);
  }

  static retort::test::TemporaryFolder* files_;
  static TinyModel *student_, *model_;
  static RealServer* server_;
};
retort::test::TemporaryFolder* ProxyRun::files_ = nullptr;
TinyModel* ProxyRun::student_ = nullptr;
TinyModel* ProxyRun::model_ = nullptr;
RealServer* ProxyRun::server_ = nullptr;

// Gone for good: every door of the server is closed from then on.
TEST_F(ProxyRun, AnotherReplicaTakesOverFromOneThatIsGone) {
  const auto gone = std::make_shared<std::atomic<bool>>(false);
  Proxying faults;
  faults.instead = [gone, now = midway("gone", true)](Peer&, const Passing&) {
    if (now()) *gone = true;
    return gone->load();
  };
  faults.everything = [gone](Peer&, const auto&) { return gone->load(); };
  expect_taken_over("gone", std::move(faults));
}

TEST_F(ProxyRun, AnotherReplicaTakesOverFromAPageOfABalancer) {
  Proxying faults;
  faults.instead = [now = midway("page", true)](Peer& peer, const Passing&) {
    return now() && peer.write(reply(502, "<html>Bad Gateway</html>"));
  };
  expect_taken_over("page", std::move(faults));
}

TEST_F(ProxyRun, AnotherReplicaTakesOverFromOneThatHangs) {
  Proxying faults;
  faults.instead = [now = midway("hung", true)](Peer& peer, const Passing&) {
    if (!now()) return false;
    peer.wait_closed();
    return true;
  };
  expect_taken_over("hung", std::move(faults), ", tolerance: 1.0e-4, timeout: 5s");
}

// Each byte comes in time, the answer never ends.
TEST_F(ProxyRun, AnotherReplicaTakesOverFromOneThatTrickles) {
  Proxying faults;
  faults.instead = [now = midway("slow", true)](Peer& peer, const Passing&) {
    if (!now()) return false;
    bool there = peer.write("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{");
    while (there) {
      std::this_thread::sleep_for(50ms);
      there = peer.write(" ");
    }
    return true;
  };
  expect_taken_over("slow", std::move(faults), ", tolerance: 1.0e-4, timeout: 5s");
}

// The engine is not there at the start of the run, and goes away once while it is probed.
TEST_F(ProxyRun, EngineThatIsLateIsWaitedFor) {
  std::atomic<int> early = 0;
  Proxying faults;
  faults.everything = [&](Peer& peer, const auto&) {
    return early++ < 2 && peer.write(reply(500, "the wheels are cold"));
  };
  faults.instead = [](Peer& peer, const Passing& passing) {
    return passing.number == kBefore && peer.write(reply(500, "oops"));
  };
  const RewritingProxy proxy(server_->url(), std::move(faults));
  const CommandResult result = launched("late", external({proxy.url()}));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  const std::string log = read_file(run("late") / "logs/reference-0.log");
  EXPECT_NE(log.find("status 500: the wheels are cold"), std::string::npos) << log;
  EXPECT_EQ(result.output.find("exited with"), std::string::npos) << result.output;
  EXPECT_GT(proxy.completions(), kBefore);
  expect_right_losses("late", kSteps);
}

// Its process is killed with requests under way, and another one with the same file answers.
TEST_F(ProxyRun, EngineThatIsRestartedIsWaitedFor) {
  const std::vector<std::string> options{"--slots", "4", "--context", "128"};
  auto before = std::make_unique<RealServer>(model_->gguf(), options);
  const RealServer after(model_->gguf(), options);
  const std::string url = before->url();
  std::atomic<bool> restarted = false;
  Proxying faults;
  faults.upstream = [&](int64_t) { return restarted ? after.url() : url; };
  faults.instead = [&, now = midway("again", false)](Peer&, const Passing&) {
    if (!now() || restarted.exchange(true)) return false;
    before.reset();
    return true;
  };
  const RewritingProxy proxy(url, std::move(faults));
  const CommandResult result = launched("again", external({proxy.url()}));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_TRUE(restarted);
  expect_right_losses("again", kSteps);
}

TEST_F(ProxyRun, BusyServerIsWaitedFor) {
  const auto storm = std::make_shared<std::atomic<int>>(0);
  Proxying faults;
  faults.instead = [storm, now = midway("busy", false)](Peer& peer, const Passing&) {
    if (!now() || (*storm)++ >= 12) return false;
    return peer.write(reply(429, "busy", "Retry-After: 1\r\n"));
  };
  const RewritingProxy proxy(server_->url(), std::move(faults));
  const CommandResult result = launched("busy", external({proxy.url()}));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_GE(storm->load(), 12);
  expect_right_losses("busy", kSteps);
}

TEST_F(ProxyRun, NumberThatIsNoneEndsTheRun) {
  Proxying faults;
  faults.answered = [now = midway("nan", false)](const json&, json& answer) {
    if (now()) test::each_log_prob(answer, [](json& value) { value = std::nan(""); });
  };
  expect_ended("nan", std::move(faults), "is null: NaN in the server");
}

TEST_F(ProxyRun, PageWithStatus200EndsTheRun) {
  Proxying faults;
  faults.instead = [now = midway("html", false)](Peer& peer, const Passing&) {
    return now() && peer.write(reply(200, "<html>Welcome</html>"));
  };
  expect_ended("html", std::move(faults), "<html>Welcome");
}

TEST_F(ProxyRun, BodyOfAGigabyteEndsTheRun) {
  const auto written = std::make_shared<std::atomic<int64_t>>(0);
  Proxying faults;
  faults.instead = [written, now = midway("huge", false)](Peer& peer, const Passing&) {
    if (!now()) return false;
    const std::string chunk = "100000\r\n" + std::string(1 << 20, ' ') + "\r\n";
    bool there = peer.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (int megabytes = 0; there && megabytes < 1024; ++megabytes, *written += 1 << 20)
      there = peer.write(chunk);
    return true;
  };
  expect_ended("huge", std::move(faults), "this is more than was asked for");
  EXPECT_GT(*written, 0);
  EXPECT_LT(*written, int64_t{1} << 29) << "read to its end";
}

TEST_F(ProxyRun, KeyThatExpiresEndsTheRun) {
  Proxying faults;
  faults.instead = [now = midway("key", false)](Peer& peer, const Passing&) {
    return now() && peer.write(reply(401, R"({"error": {"message": "Invalid API Key"}})"));
  };
  expect_ended("key", std::move(faults), "Invalid API Key; check the key (api_key_env");
}

// The run ends at its start, although the other replica is as it should be.
TEST_F(ProxyRun, CertificateOfAnotherAuthorityEndsTheRun) {
  const Authority trusted, another;
  const ScriptedServer impostor([](Peer& peer) { peer.read(); }, another.issue());
  write_file_atomically(*files_ / "trusted.pem", trusted.pem());
  const RewritingProxy good(server_->url());
  const std::string url = impostor.url();
  expect_said(launched("tls", external({good.url(), url}, ", tolerance: 1.0e-4, ca_file: " +
                                                              (*files_ / "trusted.pem").string())),
              "certificate", url);
  expect_right_losses("tls", 0);
}

// No connection breaks: the watch finds it, after ten seconds at the most.
TEST_F(ProxyRun, AnotherModelUnderTheSameAddressEndsTheRun) {
  const TinyModel other(9);
  const RealServer others(other.gguf(), {"--slots", "4", "--context", "128"});
  Proxying faults;
  faults.upstream = [now = midway("rolled", false), own = server_->url(),
                     url = others.url()](int64_t) { return now() ? url : own; };
  const RewritingProxy proxy(server_->url(), std::move(faults));
  const CommandResult result = launched("rolled", external({proxy.url()}), 100'000);
  expect_said(result, "under the same address", proxy.url());
}

// The engine was away and comes back with weights that a probe alone would take for quantised.
TEST_F(ProxyRun, EngineThatComesBackWithOtherWeightsEndsTheRun) {
  TinyModel close(3);
  close.fill("model.norm.weight", 1.02);
  const RealServer others(close.gguf(), {"--slots", "4", "--context", "128"});
  const auto away = std::make_shared<std::atomic<bool>>(false);
  Proxying faults;
  faults.upstream = [away, own = server_->url(), url = others.url()](int64_t) {
    return *away ? url : own;
  };
  faults.instead = [away, now = midway("back", false)](Peer& peer, const Passing&) {
    return now() && !away->exchange(true) && peer.write(reply(500, "I am ending"));
  };
  const RewritingProxy proxy(server_->url(), std::move(faults));
  const CommandResult result = launched("back", external({proxy.url()}, ""));
  expect_said(result, "under the same address", proxy.url());
  EXPECT_NE(result.output.find("reference/0 exited"), std::string::npos) << result.output;
  expect_right_losses("back", 0);
}

}  // namespace
}  // namespace retort::engines

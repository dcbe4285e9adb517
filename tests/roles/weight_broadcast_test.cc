// A push to seven replicas, processes of their own: how many bytes each link carries, and that one
// that stands still or is killed in the middle keeps nobody else from the weights.
#include "roles/generator/weight_broadcast.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/end_process.h"
#include "rpc/peer_links.h"
#include "tests/roles/generator_fixture.h"
#include "tests/support/process.h"
#include "tests/support/wait_until.h"

namespace retort::roles {
namespace {

using test::ChildProcess;

constexpr int64_t kBucketBytes = 128 << 10;
constexpr size_t kReplicas = 7;
constexpr auto kLimit = 60s;

// Some megabytes of weights: the words about them are short beside them.
models::Decoder decoder_of(uint64_t seed) {
  models::ModelConfig config = golden_decoder().config();
  config.hidden_size = 192;
  config.intermediate_size = 512;
  config.num_attention_heads = config.num_key_value_heads = 3;
  config.head_dim = 64;
  return models::Decoder::random(config, seed, at::kFloat);
}

// What an agent has sent to each of its peers.
struct SentBytes {
  std::map<std::string, uint64_t> to;
  template <class A>
  void serialize(A& archive) {
    archive(to);
  }
};
constexpr rpc::Method<Empty, SentBytes> kSent{"test.sent"};

SentBytes sent_by(const rpc::Agent& agent) {
  SentBytes sent;
  for (const std::string& peer : agent.peers())
    sent.to[peer] = agent.stats(peer).bytes_sent;
  return sent;
}

rpc::Agent::Options agent_options(const std::string& name, uint64_t restart = 0) {
  rpc::RpcOptions rpc;
  // Nobody is lost for being silent: what is waited for here must come without that.
  rpc.peer_timeout = Duration(10min);
  // A push has up to 24 open with a replica that passes on: what hangs of two fills its window.
  rpc.max_inflight_calls = 32;
  return {.name = name, .secret = "s", .rpc = rpc, .restart = restart};
}

int generate(const std::vector<std::string>& args) {
  Generator generator(args.at(0), decoder_of(1), models::Tokenizer::load(golden_model()),
                      engine_options());
  auto queue = std::make_shared<rpc::HandlerQueue>(256);
  rpc::Agent agent(agent_options(args.at(0), std::stoull(args.at(1))));
  generator.serve(agent, queue);
  agent.serve(kSent, queue, [&](Empty, const rpc::CallContext&) { return sent_by(agent); });
  test::say(agent.address());

  std::atomic<bool> stop{false};
  std::thread stopper([&] {
    test::hear();
    stop = true;
  });
  generator.lead(*queue, [&] { return stop.load(); });
  stopper.join();
  queue->close();
  return 0;
}

class Push : public ::testing::Test {
 protected:
  Push() {
    for (size_t i = 0; i < kReplicas; ++i)
      names_.push_back("generator/" + std::to_string(i));
    for (const std::string& name : names_)
      start(name);
    for (const std::string& name : names_)
      links_.keep(name, Deadline::after(kLimit));
    for (const parallel::NamedParameter& parameter : weights_.parameters())
      model_bytes_ += parameter.value.nbytes();
  }

  void start(const std::string& name) {
    auto child = std::make_unique<ChildProcess>(ChildProcess::spawn(
        {.role = "generator", .args = {name, std::to_string(restarts_[name]++)}, .env = {}}));
    std::lock_guard lock(mutex_);
    addresses_[name] = child->read_line(Deadline::after(kLimit));
    children_[name] = std::move(child);
  }
  void make_client(std::chrono::milliseconds push_patience) {
    client_ =
        std::make_unique<GeneratorClient>(agent_,
                                          GeneratorClient::Options{.role = "generator",
                                                                   .peers = names_,
                                                                   .timeout = kLimit,
                                                                   .generation_timeout = kLimit,
                                                                   .links = &links_,
                                                                   .patience = kLimit,
                                                                   .push_patience = push_patience},
                                          models::Tokenizer::load(golden_model()), weights_);
  }
  PendingPush push(uint64_t version) {
    return client_->push(weights_, version, kBucketBytes, false);
  }
  uint64_t version_of(const std::string& name) {
    return agent_.call(name, kGeneratorInfo, {}, {.timeout = kLimit}).get().weight_version;
  }
  // Each of `names` uses it; the others are not asked.
  void wait_in_use(const std::vector<std::string>& names, uint64_t version) {
    for (const std::string& name : names)
      ASSERT_TRUE(test::wait_until([&] { return version_of(name) == version; }, kLimit, 5ms))
          << name;
  }
  std::vector<std::string> all_but(const std::string& one) const {
    std::vector<std::string> others = names_;
    std::erase(others, one);
    return others;
  }
  void expect_drawn_everywhere(uint64_t version) {
    // Request i goes to replica i mod 7.
    for (uint64_t i = 0; i < kReplicas; ++i) {
      const GenerateRequest request = generate_request(i, version, prompts_, 1, 4);
      expect_drawn_by(weights_, client_->receive(client_->send(request)), request, prompts_);
    }
  }
  // In models.
  double sent_from_here() const {
    uint64_t bytes = 0;
    for (const auto& [peer, sent] : sent_by(agent_).to)
      bytes += sent;
    return static_cast<double>(bytes) / static_cast<double>(model_bytes_);
  }

  const models::Decoder weights_ = decoder_of(7);
  const Prompts prompts_{{1, 2, 3}};
  uint64_t model_bytes_ = 0;
  std::mutex mutex_;
  std::map<std::string, std::string> addresses_;
  std::map<std::string, uint64_t> restarts_;
  std::vector<std::string> names_;
  std::map<std::string, std::unique_ptr<ChildProcess>> children_;
  rpc::Agent agent_{agent_options("student/0")};
  rpc::PeerLinks links_{agent_, {.find = [this](const std::string& peer, Deadline) {
                          std::lock_guard lock(mutex_);
                          return addresses_.at(peer);
                        }}};
  std::unique_ptr<GeneratorClient> client_;
};

// The formula of weight_broadcast.h; without a replica: of the sender.
double models_sent_by(std::optional<size_t> replica) {
  const auto fan_out = static_cast<int64_t>(WeightBroadcast::kFanOut);
  const auto others = static_cast<int64_t>(kReplicas);
  if (!replica) return static_cast<double>(std::min(others, fan_out));
  const int64_t after = others - fan_out * (static_cast<int64_t>(*replica) + 1);
  return static_cast<double>(std::clamp<int64_t>(after, 0, fan_out));
}

// The student's link carries the model twice, whatever the number of replicas; each replica's link
// as often as it has others after it.
TEST_F(Push, EachLinkCarriesWhatTheTreeSays) {
  make_client(10min);
  const double before = sent_from_here();
  client_->wait_pushed(push(1));
  const double sent = sent_from_here() - before;
  EXPECT_NEAR(sent, models_sent_by({}), 0.1);
  wait_in_use(names_, 1);

  for (size_t i = 0; i < kReplicas; ++i) {
    const SentBytes links = agent_.call(names_[i], kSent, {}, {.timeout = kLimit}).get();
    double to_others = 0;
    for (size_t to = 0; to < kReplicas; ++to) {
      const auto found = links.to.find(names_[to]);
      const bool child = to >= 2 && (to - 2) / 2 == i;
      const bool linked = child || (i >= 2 && (i - 2) / 2 == to);
      EXPECT_EQ(found != links.to.end(), linked) << i << " to " << to;
      if (!linked || found == links.to.end()) continue;
      const double models = static_cast<double>(found->second) / static_cast<double>(model_bytes_);
      EXPECT_NEAR(models, child ? 1 : 0, 0.05) << i << " to " << to;
      to_others += models;
    }
    EXPECT_NEAR(to_others, models_sent_by(i), 0.1) << i;
  }
  expect_drawn_everywhere(1);
}

// The first replica has the third and fourth after it, and those the seventh.
TEST_F(Push, OneThatStandsStillHoldsNobody) {
  make_client(3s);  // the others, and this process, may be slow too
  client_->wait_pushed(push(1));
  children_.at("generator/0")->send_signal(SIGSTOP);
  const double before = sent_from_here();
  client_->wait_pushed(push(2));
  wait_in_use(all_but("generator/0"), 2);

  // The two that come after it in its stead, besides the two that there always are.
  EXPECT_LE(sent_from_here() - before, 4.2);

  // It is the last of the tree from now on.
  const double later = sent_from_here();
  client_->wait_pushed(push(3));
  wait_in_use(all_but("generator/0"), 3);
  EXPECT_LE(sent_from_here() - later, 4.2);

  // Its window is full of what it has not taken, and that holds nobody either.
  for (uint64_t version = 4; version <= 5; ++version) {
    client_->wait_pushed(push(version));
    wait_in_use(all_but("generator/0"), version);
  }

  children_.at("generator/0")->send_signal(SIGCONT);
  wait_in_use(names_, 5);
  expect_drawn_everywhere(5);
}

TEST_F(Push, OneThatIsKilledHoldsNobody) {
  make_client(10min);
  client_->wait_pushed(push(1));
  std::thread kills([&] { children_.at("generator/0")->kill(); });
  PendingPush second = push(2);
  kills.join();
  wait_in_use(all_but("generator/0"), 2);
  start("generator/0");
  ASSERT_TRUE(links_.wait_up({"generator/0"}, Deadline::after(kLimit)));
  wait_in_use(names_, 2);
  client_->wait_pushed(std::move(second));

  // The successor passes on what comes next, from where it is now.
  client_->wait_pushed(push(3));
  expect_drawn_everywhere(3);
}

}  // namespace
}  // namespace retort::roles

int main(int argc, char** argv) {
  using namespace retort;
  if (test::spawned_role()) end_process(roles::generate(test::spawned_args()));
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

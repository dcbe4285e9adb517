// Generators that are lost and come back as new processes, with the weights of their files: the
// trainer's last push and the requests that were lost reach them again, and the samples are those
// of a run without the loss, bit for bit.
#include <atomic>
#include <mutex>

#include "roles/generator/pushed_weights.h"
#include "roles/generator/weight_buckets.h"
#include "roles/generator/weight_checksum.h"
#include "rpc/peer_links.h"
#include "tests/roles/generator_fixture.h"
#include "tests/support/thrown.h"
#include "tests/support/wait_until.h"

namespace retort::roles {
namespace {

constexpr int64_t kBucketBytes = 4096;

// A generator that works on a thread of its own.
class Process {
 public:
  Process(std::string name, uint64_t restart)
      : generator_(name, golden_decoder(), models::Tokenizer::load(golden_model()),
                   engine_options()),
        agent_({.name = name, .secret = "s", .restart = restart}) {
    generator_.serve(agent_, queue_);
    thread_ = std::thread([this] { generator_.lead(*queue_, [this] { return stop_.load(); }); });
  }
  // As if it was killed: what it had is gone.
  ~Process() {
    stop_ = true;
    agent_.close();
    queue_->close();
    agent_.join();
    thread_.join();
  }
  std::string address() const { return agent_.address(); }

 private:
  std::shared_ptr<rpc::HandlerQueue> queue_ = std::make_shared<rpc::HandlerQueue>(256);
  Generator generator_;
  rpc::Agent agent_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class GeneratorRestart : public ::testing::Test {
 protected:
  GeneratorRestart()
      : agent_({.name = "student/0", .secret = "s"}),
        links_(agent_, {.find = [this](const std::string& peer, Deadline) {
                 std::lock_guard lock(mutex_);
                 if (!addresses_.contains(peer))
                   throw Error(ErrorCode::kUnavailable, "nobody knows " + peer);
                 return addresses_.at(peer);
               }}) {}
  ~GeneratorRestart() override {
    client_.reset();
    processes_.clear();
  }

  void start(const std::string& name) {
    auto process = std::make_unique<Process>(name, restarts_[name]++);
    std::lock_guard lock(mutex_);
    addresses_[name] = process->address();
    processes_[name] = std::move(process);
  }
  void lose(const std::string& name) {
    processes_.erase(name);
    ASSERT_TRUE(test::wait_until([&] { return !links_.up(name); }, 30s, 1ms));
  }
  void connect(const std::vector<std::string>& peers) {
    for (const std::string& peer : peers) {
      start(peer);
      links_.keep(peer, Deadline::after(30s));
    }
    client_ = std::make_unique<GeneratorClient>(agent_,
                                                GeneratorClient::Options{.role = "generator",
                                                                         .peers = peers,
                                                                         .timeout = 30s,
                                                                         .generation_timeout = 60s,
                                                                         .links = &links_,
                                                                         .patience = 30s},
                                                models::Tokenizer::load(golden_model()), weights_);
  }
  void push(uint64_t version) {
    client_->wait_pushed(client_->push(weights_, version, kBucketBytes, false));
  }
  // Once its process of now uses these weights.
  void wait_restored(const std::string& name, uint64_t version) {
    ASSERT_TRUE(links_.wait_up({name}, Deadline::after(30s)));
    ASSERT_TRUE(test::wait_until(
        [&] { return agent_.call(name, kGeneratorInfo, {}).get().weight_version == version; }, 30s,
        5ms));
  }

  const models::Decoder weights_ = other_decoder(7);
  const Prompts prompts_{{1, 2, 3}, {4, 5}};
  std::mutex mutex_;
  std::map<std::string, std::string> addresses_;
  std::map<std::string, uint64_t> restarts_;
  std::map<std::string, std::unique_ptr<Process>> processes_;
  rpc::Agent agent_;
  rpc::PeerLinks links_;
  std::unique_ptr<GeneratorClient> client_;
};

TEST_F(GeneratorRestart, GetsTheLastPushAgain) {
  connect({"generator/0"});
  push(1);
  lose("generator/0");
  start("generator/0");
  const GenerateRequest request = generate_request(1, 1, prompts_);
  expect_drawn_by(weights_, client_->receive(client_->send(request)), request, prompts_);
}

// Neither what was in work is lost, nor what was sent while it was away.
TEST_F(GeneratorRestart, GetsItsRequestsAgain) {
  connect({"generator/0"});
  push(1);
  const GenerateRequest before = generate_request(1, 1, prompts_, 2, 40),
                        meanwhile = generate_request(2, 1, prompts_);
  PendingSamples first = client_->send(before);
  client_->wait_accepted(first);
  lose("generator/0");
  PendingSamples second = client_->send(meanwhile);
  client_->wait_accepted(second);
  start("generator/0");
  expect_drawn_by(weights_, client_->receive(std::move(first)), before, prompts_);
  expect_drawn_by(weights_, client_->receive(std::move(second)), meanwhile, prompts_);
}

// Lost when the first sample of a request is here: that one stays, and is not told of again.
TEST_F(GeneratorRestart, KeepsTheSamplesThatAreHere) {
  connect({"generator/0"});
  push(1);
  const GenerateRequest request = generate_request(1, 1, prompts_, 8, 40);
  std::mutex mutex;
  std::map<int64_t, int> heard;
  PendingSamples pending = client_->send(request, [&](const IndexedCompletion& one) {
    std::lock_guard lock(mutex);
    ++heard[one.index];
  });
  ASSERT_TRUE(test::wait_until(
      [&] {
        std::lock_guard lock(mutex);
        return !heard.empty();
      },
      30s, 1ms));
  lose("generator/0");
  start("generator/0");
  expect_drawn_by(weights_, client_->receive(std::move(pending)), request, prompts_);
  EXPECT_EQ(heard.size(), 16u);
  for (const auto& [index, times] : heard)
    EXPECT_EQ(times, 1) << index;
}

TEST_F(GeneratorRestart, APushDoesNotWaitForAReplicaThatIsAway) {
  connect({"generator/0", "generator/1"});
  push(1);
  lose("generator/1");
  push(2);                                                           // to the one that is there
  const GenerateRequest request = generate_request(1, 2, prompts_);  // for the other one
  PendingSamples pending = client_->send(request);
  const Samples samples = client_->receive(std::move(pending));
  EXPECT_EQ(samples.generator, "generator/0") << "it takes over at once";
  expect_drawn_by(weights_, samples, request, prompts_);

  start("generator/1");
  wait_restored("generator/1", 2);
  const GenerateRequest next = generate_request(3, 2, prompts_);
  const Samples again = client_->receive(client_->send(next));
  EXPECT_EQ(again.generator, "generator/1");
  expect_drawn_by(weights_, again, next, prompts_);
}

// A rank of a trainer sends what it counts; all of it is there when all of them have sent again.
TEST_F(GeneratorRestart, ReplicaIsLostAmidAPush) {
  connect({"generator/0"});
  push(1);
  for (uint64_t version = 2; version < 6; ++version) {
    std::thread loses([&] {
      processes_.erase("generator/0");
      start("generator/0");
    });
    push(version);
    loses.join();
    wait_restored("generator/0", version);
  }
  const GenerateRequest request = generate_request(9, 5, prompts_);
  expect_drawn_by(weights_, client_->receive(client_->send(request)), request, prompts_);
}

// The weights that a lost request names are nowhere any more.
TEST_F(GeneratorRestart, ARequestForReplacedWeightsIsGivenBack) {
  connect({"generator/0"});
  push(1);
  // So much that it is drawn still when its generator is lost, however late that is.
  PendingSamples old = client_->send(generate_request(1, 1, prompts_, 64, 100));
  client_->wait_accepted(old);
  PendingPush next = client_->push(weights_, 2, kBucketBytes, false);
  lose("generator/0");
  start("generator/0");
  client_->wait_pushed(std::move(next));
  wait_restored("generator/0", 2);
  EXPECT_EQ(test::code_of([&] { client_->receive(std::move(old)); }), ErrorCode::kCancelled);
}

// A rank of the trainer that sent a half of the weights. Its link to a lost generator comes back
// when it may.
struct Sender {
  Sender(const std::string& name, std::function<std::string()> address_now)
      : address(std::move(address_now)), agent({.name = name, .secret = "s"}) {}

  const std::function<std::string()> address;
  std::atomic<bool> away{false};
  rpc::Agent agent;
  rpc::PeerLinks links{agent,
                       {.find =
                            [this](const std::string&, Deadline) {
                              if (away) throw Error(ErrorCode::kUnavailable, "it is away");
                              return address();
                            },
                        .longest_pause = 100ms}};
  PushedWeights pushed{agent, links, {.peers = {"generator/0"}, .timeout = 30s}};
};

class TwoSenders : public GeneratorRestart {
 protected:
  TwoSenders() {
    connect({"generator/0"});
    const auto all = make_weight_buckets(weights_, weight_slices(weights_), 1, kBucketBytes);
    for (size_t i = 0; i < 2; ++i) {
      senders_.push_back(std::make_unique<Sender>("student/" + std::to_string(i + 1), [this] {
        std::lock_guard lock(mutex_);
        return addresses_.at("generator/0");
      }));
      keep_half(i, all);
      senders_[i]->links.keep("generator/0", Deadline::after(30s));
    }
    senders_[0]->pushed.keep(CommitWeights{.version = 1, .receipts = receipts_});
  }
  ~TwoSenders() override { senders_.clear(); }

  // Every other bucket, as if they had been pushed.
  void keep_half(size_t i, const std::vector<WeightBucket>& all) {
    WeightReceipt receipt{.sender = static_cast<int64_t>(i)};
    std::vector<WeightBucket> half;
    for (size_t b = i; b < all.size(); b += 2) {
      WeightBucket bucket = all[b];
      bucket.sender = receipt.sender;
      bucket.index = receipt.buckets++;
      receipt.checksum = seal(bucket, receipt.checksum);
      half.push_back(std::move(bucket));
    }
    senders_[i]->pushed.keep(1, {std::move(half)});
    receipts_.push_back(receipt);
  }

  void come_back_first(size_t first) {
    const size_t last = 1 - first;
    for (const auto& sender : senders_)
      sender->away = true;
    lose("generator/0");
    for (const auto& sender : senders_)
      ASSERT_TRUE(test::wait_until([&] { return !sender->links.up("generator/0"); }, 30s, 1ms));
    start("generator/0");
    senders_[first]->away = false;
    ASSERT_TRUE(senders_[first]->links.wait_up({"generator/0"}, Deadline::after(30s)));

    // Its half is there, the other one is not.
    const CommitWeights early{.version = 1, .receipts = {receipts_[first], receipts_[last]}};
    const std::string missing = "sender=" + std::to_string(last);
    const auto only_the_last_is_missing = [&] {
      const auto refused = test::thrown(
          [&] { senders_[first]->agent.call("generator/0", kWeightsCommit, early).get(); });
      return refused && refused->code() == ErrorCode::kUnavailable &&
             std::string(refused->what()).find(missing) != std::string::npos;
    };
    ASSERT_TRUE(test::wait_until(only_the_last_is_missing, 30s, 5ms));

    senders_[last]->away = false;
    wait_restored("generator/0", 1);
    const GenerateRequest request = generate_request(1, 1, prompts_);
    expect_drawn_by(weights_, client_->receive(client_->send(request)), request, prompts_);
  }

  std::vector<std::unique_ptr<Sender>> senders_;
  std::vector<WeightReceipt> receipts_;
};

TEST_F(TwoSenders, TheOneThatCommitsComesBackFirst) { come_back_first(0); }
TEST_F(TwoSenders, TheOneThatCommitsComesBackLast) { come_back_first(1); }

TEST_F(GeneratorRestart, OneThatStaysAwayIsAnErrorInTheEnd) {
  connect({"generator/0"});
  GeneratorClient impatient(agent_,
                            {.role = "generator",
                             .peers = {"generator/0"},
                             .timeout = 30s,
                             .links = &links_,
                             .patience = 200ms},
                            models::Tokenizer::load(golden_model()), weights_);
  lose("generator/0");
  PendingSamples pending = impatient.send(generate_request(1, 0, prompts_));
  const Error error = test::error_of([&] { impatient.receive(std::move(pending)); });
  EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
  EXPECT_NE(std::string(error.what()).find("every replica of role 'generator' is lost"),
            std::string::npos)
      << error.what();
}

}  // namespace
}  // namespace retort::roles

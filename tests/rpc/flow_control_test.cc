// Windows of senders against the budget of a receiver, over a network that delays and reorders
// nothing but time: unit tests, and runs by seed that check every bound at every step.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>

#include "rpc/flow/receive_budget.h"
#include "rpc/flow/send_window.h"
#include "tests/support/thrown.h"

namespace retort::rpc::detail {
namespace {

using test::code_of;

// What one side told the other.
struct Log {
  std::vector<uint64_t> grants, asked_back;
  ReceiveAccount::Sender sender() {
    return {[this](uint64_t limit) { grants.push_back(limit); },
            [this](uint64_t limit) { asked_back.push_back(limit); }};
  }
};

TEST(SendWindow, SendsInOrderAndAsksForTheFirst) {
  std::vector<uint64_t> asked, sent;
  SendWindow window([&](uint64_t limit) { asked.push_back(limit); });
  const auto push = [&](uint64_t id, uint64_t bytes) {
    window.push(id, bytes, [&sent, id] { sent.push_back(id); });
  };
  window.raise(100);
  push(1, 60);
  push(2, 60);
  push(3, 10);  // would fit, but comes later
  EXPECT_EQ(sent, (std::vector<uint64_t>{1}));
  EXPECT_EQ(asked, (std::vector<uint64_t>{120}));
  window.raise(120);
  EXPECT_EQ(sent, (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(asked.back(), 130u);
  window.raise(130);
  EXPECT_EQ(window.num_waiting(), 0u);
  EXPECT_EQ(code_of([&] { window.raise(129); }), ErrorCode::kCorrupt);
}

TEST(SendWindow, WhatIsTakenOutOfTheLineIsNotSentAndNotAskedFor) {
  std::vector<uint64_t> asked, sent;
  SendWindow window([&](uint64_t limit) { asked.push_back(limit); });
  window.raise(10);
  window.push(1, 50, [&] { sent.push_back(1); });
  window.push(2, 5, [&] { sent.push_back(2); });
  EXPECT_TRUE(window.remove(1));
  EXPECT_EQ(sent, (std::vector<uint64_t>{2}));
  EXPECT_FALSE(window.remove(2)) << "it is on its way";
  window.push(3, 50, [&] { sent.push_back(3); });
  EXPECT_TRUE(window.remove(3));
  EXPECT_EQ(asked, (std::vector<uint64_t>{50, 5, 55, 5})) << "what is not needed is withdrawn";
}

TEST(SendWindow, GivesBackWhatItHasNotUsed) {
  std::vector<uint64_t> asked;
  uint64_t answered = 0;
  SendWindow window([&](uint64_t limit) { asked.push_back(limit); });
  window.raise(100);
  window.push(1, 40, [] {});
  window.push(2, 90, [] {});
  window.lower(20, [&](uint64_t limit) {
    answered = limit;
    EXPECT_EQ(asked.size(), 1u) << "the answer comes first";
  });
  EXPECT_EQ(answered, 40u) << "not below what was sent";
  EXPECT_EQ(asked, (std::vector<uint64_t>{130, 130})) << "then it is asked for again";
}

TEST(ReceiveBudget, GrantsAgainWhatWasConsumed) {
  ReceiveBudget budget(800, 1000, 1000);
  Log log;
  const auto account = budget.open(0, log.sender());
  EXPECT_EQ(account->limit(), 100u) << "an eighth of the budget";
  account->arrive(100);
  EXPECT_EQ(code_of([&] { account->arrive(1); }), ErrorCode::kResourceExhausted);
  account->consume(10);
  EXPECT_EQ(log.grants.size(), 1u) << "too little to be worth a message";
  account->want(105);
  EXPECT_EQ(log.grants, (std::vector<uint64_t>{100, 110})) << "but not if somebody waits";
  account->consume(90);
  EXPECT_EQ(log.grants.back(), 200u);
}

TEST(ReceiveBudget, AMessageLargerThanAWindowGoesAloneAndIsNotKept) {
  ReceiveBudget budget(800, 1000, 1000);
  Log first, second;
  const auto one = budget.open(0, first.sender());
  const auto other = budget.open(0, second.sender());
  one->want(500);
  other->want(600);
  EXPECT_EQ(first.grants, (std::vector<uint64_t>{100, 500}));
  EXPECT_EQ(second.grants, (std::vector<uint64_t>{100})) << "one at a time";
  one->arrive(500);
  one->consume(500);
  EXPECT_EQ(second.grants, (std::vector<uint64_t>{100, 600}));

  other->want(0);  // it was cancelled at the sender
  ASSERT_EQ(second.asked_back.size(), 1u);
  other->lowered(100);
  EXPECT_EQ(budget.promised_bytes(), 200u);
}

TEST(ReceiveBudget, NobodyIsGrantedMoreThanAMessageByAskingForIt) {
  ReceiveBudget budget(800, 1000, 1000);
  Log greedy, honest;
  const auto one = budget.open(0, greedy.sender());
  const auto other = budget.open(0, honest.sender());
  one->want(uint64_t{1} << 63);
  one->want(~uint64_t{0});
  EXPECT_EQ(greedy.grants.back(), 1100u) << "a window and the largest message";
  other->arrive(100);
  other->consume(100);
  EXPECT_EQ(honest.grants.back(), 200u) << "nobody else has less for it";
}

TEST(ReceiveBudget, WhatDiesOnItsWayIsFreeAgain) {
  ReceiveBudget budget(800, 1000, 1000);
  Log log;
  const auto account = budget.open(0, log.sender());
  account->arrive(60);
  account->close();
  EXPECT_EQ(budget.promised_bytes(), 60u) << "its memory is still there";
  account->consume(60);
  EXPECT_EQ(budget.promised_bytes(), 0u);
}

TEST(ReceiveBudget, ManyAccountsShareAndGiveBack) {
  ReceiveBudget budget(800, 1000, 1000);
  std::vector<Log> logs(9);
  std::vector<std::shared_ptr<ReceiveAccount>> accounts;
  for (auto& log : logs)
    accounts.push_back(budget.open(0, log.sender()));
  EXPECT_EQ(budget.window(), 50u);
  EXPECT_EQ(accounts.back()->limit(), 0u) << "the first eight have all of it";
  for (int i = 0; i < 8; ++i) {
    ASSERT_EQ(logs[i].asked_back, (std::vector<uint64_t>{50})) << i;
    accounts[i]->lowered(50);
  }
  EXPECT_EQ(logs.back().grants.back(), 50u);
  EXPECT_EQ(code_of([&] { accounts[0]->lowered(50); }), ErrorCode::kCorrupt) << "not asked";
}

// Messages that are larger than a window go one at a time, and each of thousands of accounts gets
// its own sent; what is said for each of them does not grow with their number.
TEST(ReceiveBudget, ThousandsOfAccountsEachHaveTheirTurn) {
  constexpr uint64_t kTotal = 1 << 20, kBytes = 900'000;
  for (const size_t num_accounts : {64, 2048}) {
    ReceiveBudget budget(kTotal, kTotal, kTotal);
    std::vector<Log> logs(num_accounts);
    std::vector<std::shared_ptr<ReceiveAccount>> accounts;
    for (auto& log : logs)
      accounts.push_back(budget.open(0, log.sender()));
    ASSERT_GT(kBytes, budget.window());
    for (const auto& account : accounts)
      account->want(kBytes);

    // Who may send does. A sender that gives something back says again what it needs.
    std::vector<uint64_t> sent(num_accounts, 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t i = 0; i < num_accounts; ++i) {
        ReceiveAccount& account = *accounts[i];
        if (account.asks_back()) {
          account.lowered(std::max(logs[i].asked_back.back(), sent[i]));
          if (sent[i] == 0) account.want(kBytes);
        }
        if (sent[i] > 0 || account.limit() < kBytes) continue;
        EXPECT_LE(budget.promised_bytes(), kTotal + kBytes) << "one goes at a time";
        account.arrive(kBytes);
        account.consume(kBytes);
        sent[i] = kBytes;
        moved = true;
      }
    }
    EXPECT_EQ(std::count(sent.begin(), sent.end(), kBytes), static_cast<long>(num_accounts));
    size_t said = 0;
    for (const Log& log : logs)
      said += log.grants.size() + log.asked_back.size();
    EXPECT_LE(said, 5 * num_accounts) << num_accounts << " accounts";
  }
}

// ---- runs by seed ---------------------------------------------------------------------------

// A session in one direction: a sender's window, frames under way in both directions, messages
// under way, messages that wait to be consumed.
struct Link {
  std::unique_ptr<SendWindow> window;
  std::shared_ptr<ReceiveAccount> account;
  std::deque<std::function<void()>> to_receiver, to_sender, in_use;
  std::map<uint64_t, uint64_t> waiting;  // id -> bytes, not sent yet
};

class Simulation {
 public:
  explicit Simulation(uint64_t seed)
      : random_(seed), total_(1 + pick(4000)), budget_(total_, 1 + pick(2000), kLargest) {}

  void run() {
    for (int i = 0; i < 400; ++i)
      step();
    // What was begun ends: everything is delivered and consumed, nothing waits for ever.
    while (deliver_one()) {
    }
    for (const auto& link : links_) {
      EXPECT_EQ(link->window->num_waiting(), 0u);
      EXPECT_TRUE(link->waiting.empty());
    }
    EXPECT_LE(budget_.promised_bytes(), total_);
  }

 private:
  uint64_t pick(uint64_t below) { return random_() % below; }
  Link& any() { return *links_[pick(links_.size())]; }

  void step() {
    const uint64_t what = pick(20);
    if (links_.empty() || (what == 0 && links_.size() < 20)) return open();
    if (what == 1 && links_.size() > 1) return close();
    if (what < 6) return send(any());
    if (what == 6) return cancel(any());
    deliver_one();
  }

  void open() {
    auto link = std::make_shared<Link>();
    const std::weak_ptr<Link> weak = link;
    const auto post = [weak](auto queue, auto task) {
      if (const auto there = weak.lock()) (there.get()->*queue).push_back(task);
    };
    link->window = std::make_unique<SendWindow>([=](uint64_t limit) {
      post(&Link::to_receiver, [weak, limit] { weak.lock()->account->want(limit); });
    });
    link->account = budget_.open(
        pick(kNumKinds),
        {[=](uint64_t limit) {
           post(&Link::to_sender, [weak, limit] { weak.lock()->window->raise(limit); });
         },
         [=](uint64_t limit) {
           post(&Link::to_sender, [=] {
             weak.lock()->window->lower(limit, [=](uint64_t answer) {
               post(&Link::to_receiver, [weak, answer] { weak.lock()->account->lowered(answer); });
             });
           });
         }});
    links_.push_back(link);
  }

  void close() {
    const size_t which = pick(links_.size());
    links_[which]->account->close();
    for (const auto& consume : links_[which]->in_use)
      consume();
    links_.erase(links_.begin() + static_cast<int64_t>(which));
  }

  void send(Link& link) {
    const uint64_t id = ++next_id_;
    const uint64_t bytes = 1 + pick(pick(8) == 0 ? kLargest : 200);
    link.waiting[id] = bytes;
    link.window->push(id, bytes, [this, &link, id, bytes] {
      link.waiting.erase(id);
      link.to_receiver.push_back([this, &link, bytes] {
        link.account->arrive(bytes);
        EXPECT_LE(budget_.promised_bytes(), total_ + kNumKinds * kLargest);
        link.in_use.push_back([&link, bytes] { link.account->consume(bytes); });
      });
    });
  }

  void cancel(Link& link) {
    if (link.waiting.empty()) return;
    const uint64_t id = link.waiting.begin()->first;
    EXPECT_TRUE(link.window->remove(id));
    link.waiting.erase(id);
  }

  // One frame or one consumption, somewhere. False if nothing is left.
  bool deliver_one() {
    std::vector<std::deque<std::function<void()>>*> ready;
    for (const auto& link : links_)
      for (auto* queue : {&link->to_receiver, &link->to_sender, &link->in_use})
        if (!queue->empty()) ready.push_back(queue);
    if (ready.empty()) return false;
    auto& queue = *ready[pick(ready.size())];
    const auto task = std::move(queue.front());
    queue.pop_front();
    task();
    return true;
  }

  static constexpr uint64_t kLargest = 5000, kNumKinds = 2;
  std::mt19937_64 random_;
  const uint64_t total_;
  ReceiveBudget budget_;
  std::vector<std::shared_ptr<Link>> links_;
  uint64_t next_id_ = 0;
};

TEST(FlowControl, EveryMessageArrivesWithinTheBudgetWhateverTheOrder) {
  const char* wanted = std::getenv("RETORT_SEEDS");
  const uint64_t seeds = wanted != nullptr ? std::stoull(wanted) : 3000;
  for (uint64_t seed = 1; seed <= seeds && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Simulation(seed).run();
  }
}

}  // namespace
}  // namespace retort::rpc::detail

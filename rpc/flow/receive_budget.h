// The receiver's end of flow control: how much memory all peers together may fill with large
// messages that nobody has taken yet.
//
// Use: an account for each peer and kind of message. The budget grants each a window, the same for
//   all: total / accounts, at most `per_account`. What was consumed is granted again.
// Memory: the sum over all accounts of (granted - consumed) is at most `total`, plus one message of
//   each kind that is larger than a window: there is one of a kind at a time in the process.
// Fairness: with more accounts windows shrink. What the senders have not used of the larger ones is
//   asked back, so that a newcomer waits for one round trip and not for somebody's next message.
//   Who waits for room, or to go alone, is served in the order of asking.
// Cost: a call looks at its own account and at those which it lets go on, and touches nothing of
//   the others. All are looked at when the window changes, which the number of accounts does at
//   powers of two.
// Threads: the loop thread, for as long as the budget lives.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

namespace retort::rpc::detail {

class ReceiveBudget;

// What a message touches of an account lies in one line of the cache.
class alignas(64) ReceiveAccount {
 public:
  struct Sender {
    std::function<void(uint64_t limit)> grant;     // the sender may go up to this
    std::function<void(uint64_t limit)> ask_back;  // it answers with lowered()
  };

  ReceiveAccount(const ReceiveAccount&) = delete;
  ReceiveAccount& operator=(const ReceiveAccount&) = delete;

  uint64_t limit() const { return limit_; }
  // The sender has not answered ask_back yet.
  bool asks_back() const { return lowering_; }
  // A message is announced. kResourceExhausted if the sender was not granted so much; the caller
  // ends the connection.
  void arrive(uint64_t bytes);
  // The memory of a message that arrived is free again.
  void consume(uint64_t bytes);
  // The sender's first message needs this limit; it replaces what was wanted before.
  void want(uint64_t limit);
  // The sender's answer to ask_back. kCorrupt if it is impossible.
  void lowered(uint64_t limit);
  // The sender is gone. What has arrived counts until it is consumed.
  void close();

 private:
  friend class ReceiveBudget;
  ReceiveAccount(ReceiveBudget& budget, size_t kind, Sender sender)
      : budget_(budget), kind_(kind), sender_(std::move(sender)) {}
  uint64_t promised() const { return limit_ - consumed_; }
  bool waits() const { return wanted_ > limit_; }

  ReceiveBudget& budget_;
  const size_t kind_;
  uint64_t limit_ = 0, arrived_ = 0, consumed_ = 0;
  uint64_t wanted_ = 0;
  static constexpr size_t kRemoved = ~size_t{0};
  size_t index_ = 0;  // among the budget's accounts
  bool closed_ = false;
  bool lowering_ = false;  // an ask_back is under way: nothing is granted meanwhile
  bool oversize_ = false;  // has more than its window, for one message
  bool in_room_line_ = false, in_lone_line_ = false;
  const Sender sender_;
};

// What each of so many accounts may have.
uint64_t window_of(uint64_t total, uint64_t per_account, uint64_t num_accounts);

class ReceiveBudget {
 public:
  ReceiveBudget(uint64_t total, uint64_t per_account, uint64_t largest_message);

  // The first grant comes inside the call, if there is room.
  std::shared_ptr<ReceiveAccount> open(size_t kind, ReceiveAccount::Sender sender);

  uint64_t window() const { return window_; }
  // Granted and not consumed, over all accounts.
  uint64_t promised_bytes() const;

 private:
  friend class ReceiveAccount;
  using Account = std::shared_ptr<ReceiveAccount>;
  // The accounts of one kind: who has more than its window, and who waits for that.
  struct Lone {
    const ReceiveAccount* holder = nullptr;
    std::deque<Account> line;
  };

  void set_limit(ReceiveAccount& account, uint64_t limit);
  void set_consumed(ReceiveAccount& account, uint64_t consumed);
  void settle(ReceiveAccount& account);
  void look_at(ReceiveAccount& account);
  void remove(ReceiveAccount& account);
  void follow_window();
  void serve_lines();
  void shrink(ReceiveAccount& account);
  bool refill(ReceiveAccount& account);
  void raise(ReceiveAccount& account, uint64_t limit);
  uint64_t spare() const;

  const uint64_t total_, per_account_, largest_message_;
  std::vector<Account> accounts_;  // in no order
  std::deque<Account> room_line_;
  std::vector<Lone> lone_;  // by kind
  uint64_t promised_ = 0;   // over all accounts
  uint64_t window_;         // window_of() as many accounts as there are
};

}  // namespace retort::rpc::detail

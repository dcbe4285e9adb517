// The receiver's end of flow control: how much memory all peers together may fill with large
// messages that nobody has taken yet.
//
// Use: an account for each peer and kind of message. The budget grants each a window, the same for
//   all: total / accounts, at most `per_account`. What was consumed is granted again.
// Memory: the sum over all accounts of (granted - consumed) is at most `total`, plus one message of
//   each kind that is larger than a window: there is one of a kind at a time in the process.
// Fairness: with more accounts windows shrink. What the senders have not used of the larger ones is
//   asked back, so that a newcomer waits for one round trip and not for somebody's next message.
// Threads: the loop thread, for as long as the budget lives.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace retort::rpc::detail {

class ReceiveBudget;

class ReceiveAccount {
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

  ReceiveBudget& budget_;
  const size_t kind_;
  const Sender sender_;
  bool closed_ = false;
  uint64_t limit_ = 0, arrived_ = 0, consumed_ = 0;
  uint64_t wanted_ = 0;
  bool lowering_ = false;  // an ask_back is under way: nothing is granted meanwhile
  bool oversize_ = false;  // has more than its window, for one message
};

class ReceiveBudget {
 public:
  ReceiveBudget(uint64_t total, uint64_t per_account, uint64_t largest_message);

  // The first grant comes inside the call, if there is room.
  std::shared_ptr<ReceiveAccount> open(size_t kind, ReceiveAccount::Sender sender);

  uint64_t window() const;
  // Granted and not consumed, over all accounts.
  uint64_t promised_bytes() const;

 private:
  friend class ReceiveAccount;
  void balance();
  void shrink(ReceiveAccount& account);
  bool refill(ReceiveAccount& account, uint64_t spare);
  void raise(ReceiveAccount& account, uint64_t limit);
  uint64_t unpromised_bytes() const;
  bool other_oversize(const ReceiveAccount& account) const;

  const uint64_t total_, per_account_, largest_message_;
  std::vector<std::shared_ptr<ReceiveAccount>> accounts_;
  size_t first_ = 0;  // whose turn it is when there is not enough for all
};

}  // namespace retort::rpc::detail

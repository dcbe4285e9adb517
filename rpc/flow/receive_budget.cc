#include "rpc/flow/receive_budget.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/error.h"

namespace retort::rpc::detail {
namespace {

// Windows are sized for at least so many accounts, so that the first ones need not shrink at once.
constexpr uint64_t kFewAccounts = 8;

}  // namespace

uint64_t window_of(uint64_t total, uint64_t per_account, uint64_t num_accounts) {
  return std::min(per_account, total / std::max(kFewAccounts, std::bit_ceil(num_accounts)));
}

void ReceiveAccount::arrive(uint64_t bytes) {
  if (bytes > limit_ - arrived_)
    throw Error(ErrorCode::kResourceExhausted, "the peer sends more than it was granted")
        .with("bytes", bytes)
        .with("granted", limit_ - arrived_);
  arrived_ += bytes;
}

void ReceiveAccount::consume(uint64_t bytes) {
  RETORT_CHECK(bytes <= arrived_ - consumed_) << "a message was consumed twice";
  budget_.set_consumed(*this, consumed_ + bytes);
  budget_.settle(*this);
}

void ReceiveAccount::want(uint64_t limit) {
  wanted_ = limit;
  budget_.settle(*this);
}

void ReceiveAccount::lowered(uint64_t limit) {
  if (!lowering_ || limit > limit_ || limit < arrived_)
    throw Error(ErrorCode::kCorrupt, "the peer gives back what it does not have")
        .with("limit", limit)
        .with("granted", limit_);
  budget_.set_limit(*this, limit);
  lowering_ = false;
  wanted_ = 0;  // asked for again, if it still is
  budget_.settle(*this);
}

void ReceiveAccount::close() {
  if (closed_) return;
  closed_ = true;
  budget_.set_limit(*this, arrived_);
  budget_.settle(*this);
}

ReceiveBudget::ReceiveBudget(uint64_t total, uint64_t per_account, uint64_t largest_message)
    : total_(total),
      per_account_(per_account),
      largest_message_(largest_message),
      window_(window_of(total, per_account, 0)) {}

uint64_t ReceiveBudget::promised_bytes() const { return promised_; }

// Returns how much can still be promised. What a lone large message has above its window is not
// taken from the others.
uint64_t ReceiveBudget::spare() const {
  uint64_t counted = promised_;
  for (const Lone& lone : lone_)
    if (lone.holder)
      counted -= lone.holder->promised() - std::min(lone.holder->promised(), window_);
  return total_ - std::min(total_, counted);
}

void ReceiveBudget::set_limit(ReceiveAccount& account, uint64_t limit) {
  promised_ += limit - account.limit_;
  account.limit_ = limit;
}

void ReceiveBudget::set_consumed(ReceiveAccount& account, uint64_t consumed) {
  promised_ -= consumed - account.consumed_;
  account.consumed_ = consumed;
}

std::shared_ptr<ReceiveAccount> ReceiveBudget::open(size_t kind, ReceiveAccount::Sender sender) {
  std::shared_ptr<ReceiveAccount> account(new ReceiveAccount(*this, kind, std::move(sender)));
  if (kind >= lone_.size()) lone_.resize(kind + 1);
  account->index_ = accounts_.size();
  accounts_.push_back(account);
  follow_window();
  settle(*account);
  return account;
}

// Does what follows from a change of an account, for it and for those that waited. Nothing here
// calls back into the budget: senders answer over the network.
void ReceiveBudget::settle(ReceiveAccount& account) {
  if (account.index_ == ReceiveAccount::kRemoved) return;
  look_at(account);
  if (account.closed_ && account.promised() == 0) {
    remove(account);
    follow_window();
  }
  serve_lines();
}

void ReceiveBudget::look_at(ReceiveAccount& account) {
  shrink(account);
  while (refill(account)) {
  }
}

void ReceiveBudget::remove(ReceiveAccount& account) {
  const Account kept = accounts_[account.index_];
  accounts_[account.index_] = accounts_.back();
  accounts_[account.index_]->index_ = account.index_;
  accounts_.pop_back();
  account.index_ = ReceiveAccount::kRemoved;
}

// A new window concerns every account. Those that have more of it are asked to give some back
// before the others may take.
void ReceiveBudget::follow_window() {
  const uint64_t window = window_of(total_, per_account_, accounts_.size());
  if (window == window_) return;
  window_ = window;
  for (const Account& account : accounts_)
    shrink(*account);
  for (const Account& account : accounts_)
    look_at(*account);
}

// Looks again at the accounts that wait in line. One that leaves the line without what it waits for
// enters it again at its own next event.
void ReceiveBudget::serve_lines() {
  for (Lone& lone : lone_)
    while (!lone.holder && !lone.line.empty()) {
      const Account first = std::move(lone.line.front());
      lone.line.pop_front();
      first->in_lone_line_ = false;
      look_at(*first);
    }
  while (!room_line_.empty() && spare() > 0) {
    const Account first = std::move(room_line_.front());
    room_line_.pop_front();
    first->in_room_line_ = false;
    look_at(*first);
    if (first->in_room_line_) return;  // there is less than what is worth a message
  }
}

void ReceiveBudget::shrink(ReceiveAccount& account) {
  // The large message has been consumed, so the next in line may have its turn.
  if (account.oversize_ && account.promised() <= window_) {
    account.oversize_ = false;
    lone_[account.kind_].holder = nullptr;
  }
  const bool expected = account.oversize_ && account.wanted_ > account.arrived_;
  if (account.closed_ || account.lowering_ || expected || account.promised() <= window_) return;
  // Bytes that have arrived are in use, so they cannot be given back.
  const uint64_t limit = std::max(account.arrived_, account.consumed_ + window_);
  if (limit >= account.limit_) return;
  account.lowering_ = true;
  account.sender_.ask_back(limit);
}

// Grants the account what it may have now. True if something was granted.
bool ReceiveBudget::refill(ReceiveAccount& account) {
  if (account.closed_ || account.lowering_) return false;

  // A message that no window holds goes alone, after the one before it was consumed.
  const bool too_large = account.waits() && account.wanted_ - account.consumed_ > window_;
  const bool in_use = account.arrived_ > account.consumed_;
  Lone& lone = lone_[account.kind_];
  const bool others_turn = lone.holder && lone.holder != &account;
  if (too_large && others_turn && !account.in_lone_line_) {
    account.in_lone_line_ = true;
    lone.line.push_back(accounts_[account.index_]);
  }
  if (too_large && !others_turn && !(account.oversize_ && in_use)) {
    if (in_use && account.wanted_ - account.arrived_ <= window_) return false;  // it will fit then
    const uint64_t most = account.consumed_ + window_ + largest_message_;
    const uint64_t limit = std::min(account.wanted_, most);
    account.oversize_ = true;
    lone.holder = &account;
    if (limit <= account.limit_) return false;
    raise(account, limit);
    return true;
  }

  // Small grants are put off, unless the sender waits for them.
  if (account.promised() >= window_) return false;
  const uint64_t missing = window_ - account.promised();
  if (!account.waits() && missing < window_ / 4) return false;
  const uint64_t room = std::min(missing, spare());
  if (room < missing && !account.in_room_line_) {
    account.in_room_line_ = true;
    room_line_.push_back(accounts_[account.index_]);
  }
  if (room == 0 || (!account.waits() && room < window_ / 4)) return false;
  raise(account, account.limit_ + room);
  return true;
}

void ReceiveBudget::raise(ReceiveAccount& account, uint64_t limit) {
  set_limit(account, limit);
  account.sender_.grant(limit);
}

}  // namespace retort::rpc::detail

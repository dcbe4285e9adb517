#include "rpc/detail/receive_budget.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/error.h"

namespace retort::rpc::detail {
namespace {

// Windows are sized for at least so many accounts, so that the first ones need not shrink at once.
constexpr uint64_t kFewAccounts = 8;

}  // namespace

void ReceiveAccount::arrive(uint64_t bytes) {
  if (bytes > limit_ - arrived_)
    throw Error(ErrorCode::kResourceExhausted, "the peer sends more than it was granted")
        .with("bytes", bytes)
        .with("granted", limit_ - arrived_);
  arrived_ += bytes;
}

void ReceiveAccount::consume(uint64_t bytes) {
  RETORT_CHECK(bytes <= arrived_ - consumed_) << "a message was consumed twice";
  consumed_ += bytes;
  budget_.balance();
}

void ReceiveAccount::want(uint64_t limit) {
  wanted_ = limit;
  budget_.balance();
}

void ReceiveAccount::lowered(uint64_t limit) {
  if (!lowering_ || limit > limit_ || limit < arrived_)
    throw Error(ErrorCode::kCorrupt, "the peer gives back what it does not have")
        .with("limit", limit)
        .with("granted", limit_);
  limit_ = limit;
  lowering_ = false;
  wanted_ = 0;  // asked for again, if it still is
  budget_.balance();
}

void ReceiveAccount::close() {
  if (closed_) return;
  closed_ = true;
  limit_ = arrived_;
  budget_.balance();
}

ReceiveBudget::ReceiveBudget(uint64_t total, uint64_t per_account, uint64_t largest_message)
    : total_(total), per_account_(per_account), largest_message_(largest_message) {}

uint64_t ReceiveBudget::window() const {
  const uint64_t count = std::max<uint64_t>(kFewAccounts, std::bit_ceil(accounts_.size()));
  return std::min(per_account_, total_ / count);
}

uint64_t ReceiveBudget::promised_bytes() const {
  uint64_t bytes = 0;
  for (const auto& account : accounts_)
    bytes += account->promised();
  return bytes;
}

// What a message has above its window is not taken from the others.
uint64_t ReceiveBudget::unpromised_bytes() const {
  const uint64_t window = this->window();
  uint64_t promised = 0;
  for (const auto& account : accounts_)
    promised += account->oversize_ ? std::min(account->promised(), window) : account->promised();
  return total_ - std::min(total_, promised);
}

std::shared_ptr<ReceiveAccount> ReceiveBudget::open(size_t kind, ReceiveAccount::Sender sender) {
  std::shared_ptr<ReceiveAccount> account(new ReceiveAccount(*this, kind, std::move(sender)));
  accounts_.push_back(account);
  balance();
  return account;
}

// Every account in turn, beginning with another one each time. Nothing here calls back into the
// budget: senders answer over the network.
void ReceiveBudget::balance() {
  std::erase_if(accounts_,
                [](const auto& account) { return account->closed_ && account->promised() == 0; });
  if (accounts_.empty()) return;
  first_ = (first_ + 1) % accounts_.size();
  for (size_t i = 0; i < accounts_.size(); ++i)
    shrink(*accounts_[(first_ + i) % accounts_.size()]);
  // Counted again only after a grant: thousands of accounts may wait for room that is not there.
  uint64_t spare = unpromised_bytes();
  for (size_t i = 0; i < accounts_.size(); ++i)
    if (refill(*accounts_[(first_ + i) % accounts_.size()], spare)) spare = unpromised_bytes();
}

void ReceiveBudget::shrink(ReceiveAccount& account) {
  if (account.promised() <= window()) account.oversize_ = false;
  const bool expected = account.oversize_ && account.wanted_ > account.arrived_;
  if (account.closed_ || account.lowering_ || expected || account.promised() <= window()) return;
  // Bytes that have arrived are in use, not spare.
  const uint64_t limit = std::max(account.arrived_, account.consumed_ + window());
  if (limit >= account.limit_) return;
  account.lowering_ = true;
  account.sender_.ask_back(limit);
}

// True when something was granted.
bool ReceiveBudget::refill(ReceiveAccount& account, uint64_t spare) {
  if (account.closed_ || account.lowering_) return false;
  const bool waits = account.wanted_ > account.limit_;
  const uint64_t window = this->window();

  // A message that no window holds goes alone, after the one before it was consumed.
  const bool too_large = waits && account.wanted_ - account.consumed_ > window;
  const bool in_use = account.arrived_ > account.consumed_;
  if (too_large && !other_oversize(account) && !(account.oversize_ && in_use)) {
    if (in_use && account.wanted_ - account.arrived_ <= window) return false;  // it will fit then
    const uint64_t most = account.consumed_ + window + largest_message_;
    const uint64_t limit = std::min(account.wanted_, most);
    account.oversize_ = true;
    if (limit > account.limit_) raise(account, limit);
    return true;
  }

  // Small grants are put off, unless the sender waits for them.
  if (account.promised() >= window) return false;
  const uint64_t room = std::min(window - account.promised(), spare);
  if (room == 0 || (!waits && room < window / 4)) return false;
  raise(account, account.limit_ + room);
  return true;
}

void ReceiveBudget::raise(ReceiveAccount& account, uint64_t limit) {
  account.limit_ = limit;
  account.sender_.grant(limit);
}

bool ReceiveBudget::other_oversize(const ReceiveAccount& account) const {
  return std::any_of(accounts_.begin(), accounts_.end(), [&](const auto& other) {
    return other.get() != &account && other->kind_ == account.kind_ && other->oversize_;
  });
}

}  // namespace retort::rpc::detail

// What flow control costs a message, by the number of accounts, on the thread that also answers
// heartbeats. Each account takes one message after the other; `large`: each is larger than a
// window, so that one goes at a time and all others wait.
//
//   receive_budget_bench        prints microseconds a message
#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include "rpc/detail/receive_budget.h"

namespace {

using retort::rpc::detail::ReceiveAccount;
using retort::rpc::detail::ReceiveBudget;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kTotal = uint64_t{4} << 30, kLargest = uint64_t{256} << 20;

// A sender that has the next message ready as soon as the one before has arrived.
struct Peer {
  std::shared_ptr<ReceiveAccount> account;
  uint64_t arrived = 0, granted = 0;
};

double microseconds_a_message(size_t num_accounts, uint64_t bytes, size_t num_messages) {
  ReceiveBudget budget(kTotal, kTotal, kLargest);
  std::vector<Peer> peers(num_accounts);
  std::vector<size_t> ready;
  for (size_t i = 0; i < num_accounts; ++i) {
    const auto granted = [&, i](uint64_t limit) {
      peers[i].granted = limit;
      ready.push_back(i);
    };
    const auto asked_back = [&, i](uint64_t limit) { peers[i].granted = limit; };
    peers[i].account = budget.open(0, {granted, asked_back});
  }
  for (Peer& peer : peers)
    if (peer.account->asks_back()) peer.account->lowered(peer.granted);
  for (Peer& peer : peers)
    peer.account->want(peer.arrived + bytes);

  const auto start = Clock::now();
  size_t num_sent = 0;
  for (size_t next = 0; num_sent < num_messages && next < ready.size(); ++next) {
    Peer& peer = peers[ready[next]];
    if (peer.granted < peer.arrived + bytes) continue;
    peer.account->arrive(bytes);
    peer.arrived += bytes;
    peer.account->consume(bytes);
    peer.account->want(peer.arrived + bytes);
    if (peer.account->asks_back()) peer.account->lowered(peer.arrived);
    ready.push_back(ready[next]);
    ++num_sent;
  }
  const std::chrono::duration<double, std::micro> time = Clock::now() - start;
  if (num_sent < num_messages) std::printf("only %zu of %zu sent\n", num_sent, num_messages);
  return time.count() / static_cast<double>(num_sent);
}

}  // namespace

int main() {
  std::printf("accounts  small us  large us\n");
  for (const size_t accounts : {64, 256, 1024, 2048}) {
    const double small = microseconds_a_message(accounts, 4096, 200'000);
    const double large = microseconds_a_message(accounts, uint64_t{128} << 20, 5'000);
    std::printf("%8zu  %8.2f  %8.2f\n", accounts, small, large);
  }
}

// What flow control costs a message, by the number of accounts, on the thread that also answers
// heartbeats. Each account takes one message after the other; `large`: each is larger than a
// window, so that one goes at a time and all others wait.
//
//   receive_budget_bench            microseconds a message, of the thread's own time: the least of
//                                   several rounds, which take turns; last the ratio of the most
//                                   accounts to the fewest
//   receive_budget_bench ACCOUNTS   small messages of so many accounts, once: for a profile
#include <time.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "rpc/flow/receive_budget.h"

namespace {

using retort::rpc::detail::ReceiveAccount;
using retort::rpc::detail::ReceiveBudget;

constexpr uint64_t kTotal = uint64_t{4} << 30, kLargest = uint64_t{256} << 20;
constexpr uint64_t kSmall = 4096, kLarge = uint64_t{128} << 20;
constexpr size_t kNumSmall = 200'000, kNumLarge = 20'000;
constexpr int kRounds = 7;

// A sender that has the next message ready as soon as the one before has arrived.
struct Peer {
  std::shared_ptr<ReceiveAccount> account;
  uint64_t arrived = 0, granted = 0;
};

double microseconds_of_thread() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
}

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

  const double start = microseconds_of_thread();
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
  const double time = microseconds_of_thread() - start;
  if (num_sent < num_messages) std::printf("only %zu of %zu sent\n", num_sent, num_messages);
  return time / static_cast<double>(num_sent);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) {
    const auto accounts = static_cast<size_t>(std::atoi(argv[1]));
    std::printf("%.3f us\n", microseconds_a_message(accounts, kSmall, kNumSmall));
    return 0;
  }

  constexpr std::array<size_t, 4> kAccounts{64, 256, 1024, 2048};
  std::array<double, kAccounts.size()> small{}, large{};
  small.fill(1e9);
  large.fill(1e9);
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < kAccounts.size(); ++i) {
      small[i] = std::min(small[i], microseconds_a_message(kAccounts[i], kSmall, kNumSmall));
      large[i] = std::min(large[i], microseconds_a_message(kAccounts[i], kLarge, kNumLarge));
    }
  }

  std::printf("accounts  small us  large us\n");
  for (size_t i = 0; i < kAccounts.size(); ++i)
    std::printf("%8zu  %8.3f  %8.3f\n", kAccounts[i], small[i], large[i]);
  std::printf("%zu to %zu: %.2f x small, %.2f x large\n", kAccounts.front(), kAccounts.back(),
              small.back() / small.front(), large.back() / large.front());
}

#include "bench/rpc/agent_contestant.h"

#include <ATen/core/Tensor.h>

#include <atomic>
#include <thread>
#include <utility>

namespace retort::bench {
namespace {

struct Push {
  std::string bytes;
  at::Tensor tensor;
  template <class A>
  void serialize(A& archive) {
    archive(bytes, tensor);
  }
};
inline constexpr rpc::Method<Push, Empty> kPush{"bench.push", true};
constexpr const char* kServer = "server/0";

rpc::Agent::Options options(const AgentKind& kind, const std::string& name) {
  rpc::RpcOptions rpc;
  rpc.encryption = kind.tls ? rpc::Encryption::kAlways : rpc::Encryption::kNever;
  if (!kind.cma) rpc.channels = {"basic"};
  return {.name = name, .secret = "benchmark", .rpc = rpc};
}

class AgentContestant final : public Contestant {
 public:
  AgentContestant(const AgentKind& kind, const std::string& address, Source source)
      : source_(std::move(source)), agent_(options(kind, "client/0")) {
    agent_.connect(kServer, address, Deadline::after(kWait));
  }

  Turn run(int64_t bytes, int depth, int count) override {
    const Push request = request_of(bytes);
    std::deque<Future<Empty>> replies;
    return keep_on_their_way(
        depth, count, [&] { replies.push_back(agent_.call(kServer, kPush, request)); },
        [&] { finish_oldest(replies); });
  }

  std::optional<LoadedTurn> run_loaded(double seconds) override {
    std::atomic<bool> over{false};
    int64_t messages = 0;
    const auto start = Clock::now();
    std::thread stream([&] {
      const Push request = request_of(kStreamBytes);
      std::deque<Future<Empty>> replies;
      for (; !over; ++messages) {
        if (replies.size() == kStreamDepth) finish_oldest(replies);
        replies.push_back(agent_.call(kServer, kPush, request));
      }
      while (!replies.empty())
        finish_oldest(replies);
    });

    LoadedTurn turn;
    const Push small = request_of(kSmallBytes);
    while (microseconds_since(start) < seconds * 1e6) {
      const auto begun = Clock::now();
      agent_.call(kServer, kPush, small).get(Deadline::after(kWait));
      turn.call_us.push_back(microseconds_since(begun));
    }
    over = true;
    stream.join();
    turn.stream_bytes_per_second = static_cast<double>(messages) *
                                   static_cast<double>(kStreamBytes) /
                                   (microseconds_since(start) * 1e-6);
    return turn;
  }

 private:
  Push request_of(int64_t bytes) const {
    if (bytes <= kSmallBytes) return {std::string(static_cast<size_t>(bytes), 'x'), {}};
    return {{}, source_.first(bytes)};
  }
  static void finish_oldest(std::deque<Future<Empty>>& replies) {
    replies.front().get(Deadline::after(kWait));
    replies.pop_front();
  }

  const Source source_;
  rpc::Agent agent_;
};

}  // namespace

std::vector<std::unique_ptr<rpc::Agent>> serve_agents(
    const std::shared_ptr<rpc::HandlerQueue>& queue) {
  std::vector<std::unique_ptr<rpc::Agent>> agents;
  for (const AgentKind& kind : kAgentKinds) {
    agents.push_back(std::make_unique<rpc::Agent>(options(kind, kServer)));
    agents.back()->serve(kPush, queue,
                         [](const Push&, const rpc::CallContext&) { return Empty{}; });
  }
  return agents;
}

std::unique_ptr<Contestant> make_agent_contestant(const AgentKind& kind, const std::string& address,
                                                  Source source) {
  return std::make_unique<AgentContestant>(kind, address, std::move(source));
}

}  // namespace retort::bench

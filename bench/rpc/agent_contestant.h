// rpc::Agent with its default options, handlers on the thread of a serving loop, as a teacher's.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/rpc/contestant.h"
#include "rpc/agent.h"

namespace retort::bench {

struct AgentKind {
  const char* name;
  bool tls;
  bool cma;  // else the bytes of tensors travel by TCP
};
inline constexpr AgentKind kAgentKinds[] = {{"retort cma", false, true},
                                            {"retort tcp", false, false},
                                            {"retort tls, cma", true, true},
                                            {"retort tls, tcp", true, false}};

// The serving ends, one for each kind. Handlers run on the thread that drains `queue`.
std::vector<std::unique_ptr<rpc::Agent>> serve_agents(
    const std::shared_ptr<rpc::HandlerQueue>& queue);

// Connects to the serving end of the same kind.
std::unique_ptr<Contestant> make_agent_contestant(const AgentKind& kind, const std::string& address,
                                                  Source source);

}  // namespace retort::bench

#include "tests/rpc/transport/spawned_node.h"

#include <sys/resource.h>

#include <sstream>

#include "base/log.h"
#include "tests/rpc/transport/node.h"

namespace retort::rpc::transport::testing {
namespace {

using test::hear;
using test::say;

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');)
    parts.push_back(part);
  return parts;
}

// Answers "counters" with the acceptor's, "pipes" with the number of pipes that came in.
int serve(const std::string& channels, bool tls, int max_descriptors) {
  auto options = node_options("teacher/0");
  options.channels = split(channels);
  options.tls = tls;
  if (max_descriptors > 0) {
    const auto limit = static_cast<rlim_t>(max_descriptors);
    const rlimit limits{limit, limit};
    RETORT_CHECK(setrlimit(RLIMIT_NOFILE, &limits) == 0);
  }
  Node node(options);
  say(node.address());
  while (const auto question = hear()) {
    const auto& counters = node.acceptor->counters();
    if (*question == "errors") say(std::to_string(counters.accept_errors));
    if (*question == "evicted") say(std::to_string(counters.evicted()));
  }
  node.close();
  return 0;
}

}  // namespace

std::optional<int> run_if_spawned() {
  const auto role = test::spawned_role();
  if (!role) return std::nullopt;
  set_log_identity(*role);
  const auto args = test::spawned_args();
  return serve(args.at(0), args.at(1) == "tls", std::stoi(args.at(2)));
}

SpawnedNode spawn_node(const std::string& channels, bool tls, int max_descriptors) {
  auto process = test::ChildProcess::spawn(
      {.role = "teacher",
       .args = {channels, tls ? "tls" : "plain", std::to_string(max_descriptors)}});
  std::string address = process.read_line(soon());
  return {std::move(process), std::move(address)};
}

}  // namespace retort::rpc::transport::testing

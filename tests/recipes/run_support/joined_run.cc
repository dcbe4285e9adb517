#include "tests/recipes/run_support/joined_run.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "base/error.h"
#include "base/hash.h"
#include "base/private_file.h"

namespace retort::test {
namespace {

// Of this address; somebody else may take it before it is used, which nobody here does.
int free_port(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  RETORT_CHECK(::getaddrinfo(host.c_str(), "0", &hints, &found) == 0) << host;
  const int fd = ::socket(found->ai_family, SOCK_STREAM, 0);
  RETORT_CHECK(::bind(fd, found->ai_addr, found->ai_addrlen) == 0) << "cannot bind " << host;
  ::freeaddrinfo(found);
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size);
  ::close(fd);
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&bound);
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&bound);
  return ntohs(bound.ss_family == AF_INET6 ? v6->sin6_port : v4->sin_port);
}

}  // namespace

JoinedRun::JoinedRun(const fs::path& folder, const std::string& host)
    : host_(host), port_(free_port(host)), secret_(folder / "secret") {
  fs::create_directories(folder);
  write_private_file(secret_, random_hex(32) + "\n");
}

std::string JoinedRun::rendezvous() const {
  const bool v6 = host_.find(':') != std::string::npos;
  return (v6 ? "[" + host_ + "]" : host_) + ":" + port();
}

Command& JoinedRun::start(JoinedProcess process) {
  process.variables.try_emplace("RETORT_SECRET_FILE", secret_.string());
  process.variables.try_emplace("RETORT_RENDEZVOUS", rendezvous());
  std::vector<std::string> argv{"/usr/bin/env"};
  for (const auto& [name, value] : process.variables)
    if (!value.empty()) argv.push_back(name + "=" + value);
  argv.insert(argv.end(), process.before.begin(), process.before.end());
  argv.insert(argv.end(), {retort_binary(), "join"});
  argv.insert(argv.end(), process.arguments.begin(), process.arguments.end());
  return *commands_.emplace_back(std::make_unique<Command>(std::move(argv)));
}

void JoinedRun::start_all(const fs::path& recipe, int64_t size,
                          const std::vector<std::string>& more) {
  for (int64_t rank = 0; rank < size; ++rank) {
    JoinedProcess process{.variables = {{"RETORT_RANK", std::to_string(rank)}},
                          .arguments = {recipe.string()}};
    process.arguments.insert(process.arguments.end(), more.begin(), more.end());
    start(std::move(process));
  }
}

std::vector<CommandResult> JoinedRun::wait(std::chrono::seconds deadline) {
  std::vector<CommandResult> results;
  for (const auto& command : commands_)
    results.push_back(command->wait(deadline));
  return results;
}

std::vector<int> processes_of(const fs::path& folder) {
  std::vector<int> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "cmdline", std::ios::binary);
    const std::string line{std::istreambuf_iterator<char>(file), {}};
    const int pid = std::stoi(name);
    if (pid != ::getpid() && line.find(folder.string()) != std::string::npos) found.push_back(pid);
  }
  return found;
}

}  // namespace retort::test

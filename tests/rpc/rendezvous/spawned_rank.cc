#include "tests/rpc/rendezvous/spawned_rank.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cstdio>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "base/log.h"
#include "rpc/rendezvous/rendezvous.h"
#include "tests/rpc/rendezvous/store_fixture.h"
#include "tests/support/require.h"

namespace retort::rpc::rendezvous::testing {
namespace {

using test::require;

c10::intrusive_ptr<c10d::ProcessGroupGloo> connect_group(const StorePtr& store,
                                                         const std::string& name, int rank,
                                                         int size) {
  auto options = c10d::ProcessGroupGloo::Options::create(60s);
  options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")};
  options->threads = 1;
  return c10::make_intrusive<c10d::ProcessGroupGloo>(
      c10::make_intrusive<c10d::PrefixStore>("run/" + name, store), rank, size, std::move(options));
}

void run_rank(int rank, int size, uint16_t port, bool tls) {
  const RendezvousAccess access{.name = "student/" + std::to_string(rank),
                                .run = "run 7",
                                .secret = "the secret of these tests",
                                .encryption = tls ? Encryption::kAlways : Encryption::kAuto};
  const StorePtr store = store_connector(access)("127.0.0.1", port, 60s);

  // Two groups over one store, as a world makes them.
  const auto first = connect_group(store, "first", rank, size);
  const auto second = connect_group(store, "second", rank, size);
  std::vector<at::Tensor> sums{at::full({4}, rank + 1.0)};
  first->allreduce(sums)->wait();
  const auto expected = static_cast<float>(size * (size + 1) / 2);
  require(sums[0].const_data_ptr<float>()[3] == expected, "the sum of all ranks");

  std::vector<at::Tensor> sent{rank == 0 ? at::full({3}, 7.0) : at::zeros({3})};
  second->broadcast(sent)->wait();
  require(sent[0].const_data_ptr<float>()[2] == 7, "what rank 0 sent");
  second->barrier()->wait();
}

// Says "connected" and waits until it is killed.
void run_waiter(uint16_t port, bool tls) {
  const StorePtr store = connect(port, tls);
  test::say("connected");
  store->wait({"never"}, 1h);
}

int run(const std::string& role) {
  const std::vector<std::string> args = test::spawned_args();
  const auto port = static_cast<uint16_t>(std::stoi(args.at(0)));
  const bool tls = args.at(1) == "tls";
  try {
    if (role == "waiter")
      run_waiter(port, tls);
    else
      run_rank(std::stoi(args.at(2)), std::stoi(args.at(3)), port, tls);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: %s\n", role.c_str(), e.what());
    return 1;
  }
}

}  // namespace

std::optional<int> run_if_spawned() {
  const auto role = test::spawned_role();
  if (!role) return std::nullopt;
  set_log_identity(*role);
  return run(*role);
}

test::ChildProcess spawn_rank(int rank, int size, uint16_t port, bool tls) {
  return test::ChildProcess::spawn({.role = "rank",
                                    .args = {std::to_string(port), tls ? "tls" : "plain",
                                             std::to_string(rank), std::to_string(size)}});
}

}  // namespace retort::rpc::rendezvous::testing

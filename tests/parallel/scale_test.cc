// What a world costs as it grows: requests to the run's store, and sockets of a rank. All ranks are
// threads of this process, on the store that the launcher has.
#include <gtest/gtest.h>

#include <ATen/ops/full.h>

#include <filesystem>
#include <thread>

#include "base/sizes.h"
#include "parallel/world.h"
#include "rpc/rendezvous/rendezvous.h"
#include "rpc/rendezvous/store_server.h"
#include "tests/rpc/rendezvous/store_fixture.h"
#include "tests/support/thrown.h"

namespace retort::parallel::testing {
namespace {

using namespace std::chrono_literals;
namespace store = rpc::rendezvous;

ConnectStore connector(int64_t rank) {
  return rpc::store_connector({.name = "student/" + std::to_string(rank),
                               .run = "run 7",
                               .secret = "the secret of these tests"});
}

int64_t num_sockets() {
  int64_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the descriptor of this listing
    const auto target = std::filesystem::read_symlink(entry.path(), gone).string();
    count += target.starts_with("socket:") ? 1 : 0;
  }
  return count;
}

// Runs `body` for each rank, a thread each.
void on_ranks(int64_t size, const std::function<void(int64_t)>& body) {
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      const auto error = test::thrown([&] { body(rank); });
      if (error) ADD_FAILURE() << "rank " << rank << ": " << error->what();
    });
  for (std::thread& thread : threads)
    thread.join();
}

// The worlds of all ranks of a layout, and what they cost.
class Worlds {
 public:
  explicit Worlds(Layout layout) : layout_(layout), worlds_(to_size(layout.world_size())) {
    sockets_before_ = num_sockets();
    on_ranks(layout.world_size(), [&](int64_t rank) {
      worlds_[to_size(rank)] =
          std::make_unique<World>(World::Options{.role = "student",
                                                 .layout = layout_,
                                                 .rank = rank,
                                                 .store_port = server_->port(),
                                                 .store_prefix = "run/student/0/",
                                                 .connect_store = connector(rank)});
    });
  }

  void use(const std::function<void(World&)>& body) {
    on_ranks(layout_.world_size(), [&](int64_t rank) { body(*worlds_[to_size(rank)]); });
  }
  store::StoreStats stats() { return server_->stats(); }
  // Of Gloo's: without those of the store, one at each end.
  int64_t sockets() const { return num_sockets() - sockets_before_ - 2 * layout_.world_size(); }

 private:
  const Layout layout_;
  const std::unique_ptr<store::StoreServer> server_ = store::testing::make_server();
  int64_t sockets_before_ = 0;
  std::vector<std::unique_ptr<World>> worlds_;
};

void sum_over(Group& group, int64_t expected) {
  if (group.all_reduce(int64_t{1}) != expected)
    throw Error(ErrorCode::kCorrupt, "the sum over " + group.name() + " is wrong");
}

TEST(Scale, ARankAsksTheStoreAsOftenInALargeWorldAsInASmallOne) {
  Worlds small({.dp = 4});
  Worlds large({.dp = 32});
  EXPECT_EQ(small.stats().connections, 4u) << "one a process";
  EXPECT_EQ(large.stats().connections, 32u);
  // Arriving takes three, or four of the last rank; an address is left with one, and the others'
  // are asked for with two, or three where somebody's is missing still.
  EXPECT_LE(small.stats().requests, 8u * 4);
  EXPECT_LE(large.stats().requests, 8u * 32);
}

TEST(Scale, ARankIsConnectedOnceToEachOtherOfASetOfRanks) {
  // {all, mp} are four ranks with six connections; of the two pairs of tp, and of {pp, embedding},
  // each has one. A rank listens once for all of them.
  Worlds worlds({.tp = 2, .pp = 2});
  EXPECT_EQ(worlds.sockets(), 4 + 2 * (6 + 2 + 2));
}

TEST(Scale, NobodyAsksTheStoreOnceTheWorldIsMade) {
  Worlds worlds({.dp = 8});
  const int64_t before = worlds.stats().requests;
  worlds.use([](World& world) {  // with everybody else
    at::Tensor parts = at::full({8}, 1.0), sum = at::full({1}, 0.0);
    world.dp().reduce_scatter(sum, parts);
    if (*sum.const_data_ptr<float>() != 8) throw Error(ErrorCode::kCorrupt, "a wrong sum");
  });
  EXPECT_EQ(worlds.stats().requests, before);
}

TEST(Scale, GroupsOfTheSameRanksShareTheirConnections) {
  Worlds worlds({.dp = 3});
  worlds.use([](World& world) { world.all().barrier(); });
  const int64_t after_one = worlds.sockets();
  EXPECT_EQ(after_one, 3 + 3 * 2) << "a listener each, and both ends of three connections";
  worlds.use([](World& world) {
    sum_over(world.dp(), 3);
    sum_over(world.dp_pp(), 3);
    sum_over(world.all(), 3);
  });
  EXPECT_EQ(worlds.sockets(), after_one);
}

// Groups of the same ranks use the same connections at the same time, and messages with equal tags.
TEST(Scale, OperationsOfTwoGroupsDoNotMeet) {
  Worlds worlds({.dp = 2});
  worlds.use([](World& world) {
    const int other = 1 - world.all().rank();
    at::Tensor from_all = at::full({4}, 0.0), from_dp = at::full({4}, 0.0);
    Work first = world.all().recv_async(from_all, other, 7);
    Work second = world.dp().recv_async(from_dp, other, 7);
    // Sent in the other order.
    Work sent_dp = world.dp().send_async(at::full({4}, 2.0), other, 7);
    Work sent_all = world.all().send_async(at::full({4}, 1.0), other, 7);
    for (Work* work : {&first, &second, &sent_dp, &sent_all})
      work->wait();
    if (*from_all.const_data_ptr<float>() != 1 || *from_dp.const_data_ptr<float>() != 2)
      throw Error(ErrorCode::kCorrupt, "a message came to the other group");

    at::Tensor a = at::full({8}, 1.0), b = at::full({8}, 10.0);
    Work sum_a = world.dp().all_reduce_async(a);
    Work sum_b = world.all().all_reduce_async(b);
    sum_b.wait();
    sum_a.wait();
    if (*a.const_data_ptr<float>() != 2 || *b.const_data_ptr<float>() != 20)
      throw Error(ErrorCode::kCorrupt, "two sums met");
  });
}

}  // namespace
}  // namespace retort::parallel::testing

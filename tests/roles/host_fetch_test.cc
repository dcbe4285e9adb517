// What is fetched once a host: by whom, who gets it, and whose errors are heard. The ranks are
// threads of this process, the hosts names.
#include "roles/teacher/host_fetch.h"

#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>

#include <atomic>
#include <thread>

#include "base/error.h"
#include "base/sizes.h"
#include "parallel/world.h"
#include "tests/support/thrown.h"

namespace retort::roles::testing {
namespace {

// Runs `body` on each rank of a world of dp ranks, a thread each; what it threw.
std::vector<std::optional<Error>> on_ranks(int64_t size,
                                           const std::function<void(parallel::Group&)>& body) {
  const parallel::StoreServer store("127.0.0.1");
  std::vector<std::optional<Error>> errors(to_size(size));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      errors[to_size(rank)] = test::thrown([&] {
        parallel::World world({.role = "student",
                               .layout = {.dp = size},
                               .rank = rank,
                               .store_port = store.port(),
                               .store_prefix = "run/student/0/"});
        body(world.dp());
      });
    });
  for (std::thread& thread : threads)
    thread.join();
  return errors;
}

const std::vector<std::string> kHosts{"a", "b", "a", "a", "b"};
const std::string& host_of(const parallel::Group& group) { return kHosts[to_size(group.rank())]; }

TEST(HostFetch, OneRankOfEachHostFetches) {
  const at::Tensor head = at::arange(6 * 4).view({6, 4}).to(at::kBFloat16);
  std::vector<std::atomic<int>> fetches(kHosts.size());
  std::atomic<int64_t> bytes{0};
  const auto errors = on_ranks(std::ssize(kHosts), [&](parallel::Group& group) {
    const at::Tensor got = fetch_once_a_host(group, host_of(group), head.sizes(), [&] {
      ++fetches[to_size(group.rank())];
      bytes += to_int64(head.nbytes());
      return head;
    });
    EXPECT_EQ(got.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(at::equal(got, head)) << "on rank " << group.rank();
  });

  for (const auto& error : errors)
    EXPECT_FALSE(error) << error->what();
  EXPECT_EQ(bytes, 2 * to_int64(head.nbytes())) << "two hosts, not five ranks";
  for (size_t rank = 0; rank < kHosts.size(); ++rank)
    EXPECT_EQ(fetches[rank], rank < 2 ? 1 : 0) << rank;
}

TEST(HostFetch, AFetchThatFailsIsHeardOnEveryRank) {
  const auto errors = on_ranks(std::ssize(kHosts), [&](parallel::Group& group) {
    fetch_once_a_host(group, host_of(group), {2, 2}, [&]() -> at::Tensor {
      if (group.rank() == 1) throw Error(ErrorCode::kCorrupt, "other rows than asked");
      return at::arange(4).view({2, 2});
    });
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::kCorrupt);
  }
}

}  // namespace
}  // namespace retort::roles::testing

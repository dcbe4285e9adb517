// The collectives of the stand-in device: the sums of the CPU's, seen when they were waited for.
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/losses/stand_in_device.h"
#include "tests/parallel/missing_gradients.h"
#include "tests/parallel/rank_process.h"
#include "tests/parallel/stand_in/backends.h"
#include "tests/parallel/stand_in/stand_in_ranks.h"
#include "tests/parallel/stand_in/start.h"
#include "tests/support/sanitizer.h"

namespace retort::test {
namespace {

using parallel::Group;
using parallel::ReduceOp;
using parallel::Work;
using parallel::World;

constexpr int64_t kCount = 24;
constexpr int kRanks = 4;

// Whole numbers, so that sums are exact in any order; other ones on each rank and in each call.
class Values {
 public:
  Values(const Group& group, at::ScalarType dtype, at::Device device)
      : rank_(group.rank()), dtype_(dtype), device_(device) {}

  at::Tensor here(int64_t count = kCount) {
    calls_ += 1;
    return ((at::arange(count) * 5 + 3 * rank_ + calls_) % 11).to(dtype_);
  }
  at::Tensor there(const at::Tensor& tensor) const { return tensor.to(device_); }

 private:
  const int rank_;
  const at::ScalarType dtype_;
  const at::Device device_;
  int64_t calls_ = 0;
};

std::string mistakes_name(int64_t series) { return "mistakes-" + std::to_string(series); }

// Whether all of it is what nobody should see: not a number, or -1.
bool is_nothing(const at::Tensor& there) {
  const at::Tensor tensor = there.cpu();
  if (tensor.is_floating_point()) return tensor.isnan().all().item<bool>();
  return tensor.eq(-1).all().item<bool>();
}

// The same operation on the CPU, where Gloo computes it, and on the device, beside another one that
// is in flight there.
void check_asynchronous(Group& group, Values values) {
  const auto check = [&](const std::string& what, auto&& start, const at::Tensor& in,
                         const at::Tensor& out) {
    at::Tensor from = in;
    at::Tensor to = out.defined() ? out : from;
    at::Tensor from_there = values.there(in);
    at::Tensor to_there = out.defined() ? values.there(out) : from_there;
    at::Tensor beside = values.there(in);
    start(from, to).wait();

    Work first = group.all_reduce_async(beside);
    Work second = start(from_there, to_there);
    const std::string name = group.name() + " " + what + " ";
    require(is_nothing(beside) && is_nothing(to_there), name + "is not seen before it is awaited");
    second.wait();
    require(at::equal(to_there.cpu(), to), name + "gives what the CPU has");
    require(is_nothing(beside), name + "leaves alone what another one has");
    first.wait();
    require(!is_nothing(beside), name + "has its turn");
    second.wait();
    require(at::equal(to_there.cpu(), to), name + "may be awaited twice");
  };

  for (const auto op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin})
    check("all_reduce", [&](at::Tensor& in, at::Tensor&) { return group.all_reduce_async(in, op); },
          values.here(), {});
  const at::Tensor part = values.here(), whole = values.here(kCount * group.size());
  check(
      "all_gather",
      [&](at::Tensor& in, at::Tensor& out) { return group.all_gather_into_async(out, in); }, part,
      whole);
  if (part.scalar_type() != at::kFloat) return;
  check(
      "reduce_scatter",
      [&](at::Tensor& in, at::Tensor& out) { return group.reduce_scatter_async(out, in); }, whole,
      part);
}

// Those that wait by themselves, and the part that lies inside of the whole.
void check_synchronous(Group& group, Values values) {
  const auto same = [&](const at::Tensor& there, const at::Tensor& here, const char* what) {
    require(at::equal(there.cpu(), here), group.name() + " " + what);
  };
  for (int root = 0; root < group.size(); ++root) {
    at::Tensor here = values.here(), there = values.there(here);
    group.broadcast(here, root);
    group.broadcast(there, root);
    same(there, here, "broadcast");
  }
  const at::Tensor part = values.here();
  same(group.all_gather(values.there(part)), group.all_gather(part), "all_gather");

  at::Tensor here = values.here(kCount * group.size()), there = values.there(here);
  const auto own = [&](const at::Tensor& whole) {
    return whole.narrow(0, kCount * group.rank(), kCount);
  };
  group.all_gather_into(here, own(here));
  group.all_gather_into(there, own(there));
  same(there, here, "all_gather in place");
  if (part.scalar_type() != at::kFloat) return;
  at::Tensor sum_here = own(here), sum_there = own(there);
  group.reduce_scatter(sum_here, here);
  group.reduce_scatter(sum_there, there);
  same(there, here, "reduce_scatter in place");
}

TEST(StandInStart, TellsAllOfItself) {
  const Start start{.number = 7,
                    .operation = "all_reduce sum",
                    .bytes = 12,
                    .dtype = "Float",
                    .before = {{"student.tp-1", 3}, {"student.all-1", 0}},
                    .data = std::string("\n\0 \n12", 6)};
  const Start got = start_from_text(start.to_text());
  EXPECT_EQ(got.number, start.number);
  EXPECT_EQ(got.what(), "all_reduce sum of 12 bytes of Float");
  EXPECT_EQ(got.before, start.before);
  EXPECT_EQ(got.data, start.data);
}

// The same ranks do all that goes well, as most of their time is that of their start: what the CPU
// has once it was awaited, the groups that are connected in each layout, a missing gradient.
TEST(StandInCollectives, GiveWhatTheCpuHasInEveryLayout) {
  const parallel::StoreServer store("127.0.0.1");
  parallel::testing::expect_success(
      parallel::testing::spawn_ranks(store, {.scenario = "sound", .layout = {.tp = 2, .dp = 2}},
                                     kRanks),
      std::chrono::seconds(180));
}

TEST(StandInCollectives, AreToldByGroupsWithoutAConnection) {
  const parallel::StoreServer store("127.0.0.1");
  parallel::testing::expect_success(
      parallel::testing::spawn_ranks(store,
                                     {.scenario = "told",
                                      .layout = {.tp = 2, .dp = 2},
                                      .timeout = std::chrono::seconds(12) * kSlowness},
                                     kRanks),
      std::chrono::seconds(180));
}

TEST(StandInMistakes, EndWithAMessageThatNamesGroupNumberAndRanks) {
  const parallel::StoreServer store("127.0.0.1");
  std::vector<ChildProcess> ranks;
  for (int64_t series = 0; series < kMistakeSeries; ++series)
    for (ChildProcess& rank : parallel::testing::spawn_ranks(
             store, {.scenario = mistakes_name(series), .layout = {.tp = 2, .dp = 2}}, kRanks))
      ranks.push_back(std::move(rank));
  parallel::testing::expect_success(std::move(ranks), std::chrono::seconds(180));
}

World::Options options_of(const std::string& world, const parallel::Layout& layout) {
  return on_stand_in(parallel::testing::child_world_options(world, layout));
}

void require_sound(const World::Options& options) {
  const auto failure = stand_in_failure(options);
  require(!failure, failure.value_or(""));
}

// A missing gradient keeps nobody waiting.
void missing_gradients() {
  World::Options options = options_of("missing_gradients", {.dp = 2});
  if (options.rank >= options.layout.world_size()) return;
  // The group in which the ranks meet has its sums on the device too, where their order is told.
  options.device_groups = World::Options::DeviceGroups::kAll;
  {
    World world(options);
    parallel::testing::train_with_missing_gradients(world,
                                                    [&] { return stand_in_collectives(options); });
  }
  require_sound(options);
  require(stand_in_collectives(options) > 100, "they ran on the device");
}

// What the CPU has, once it was awaited.
void collectives() {
  World::Options options = options_of("collectives", {.tp = 2, .dp = 2});
  options.device_groups = World::Options::DeviceGroups::kAll;
  {
    World world(options);
    for (Group* group : {&world.all(), &world.tp(), &world.dp(), &world.mp()})
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
        check_asynchronous(*group, {*group, dtype, world.device()});
        check_synchronous(*group, {*group, dtype, world.device()});
      }
    require(stand_in_copies_to_host() > 0, "it is another device than the CPU");
  }
  require_sound(options);
  require(stand_in_collectives(options) > 100, "they ran on the device");
}

// Of a world's groups those are connected that tensors of devices go over; the others' collectives
// of such tensors give the same through host memory.
void carriers(const parallel::Layout& layout) {
  const World::Options options =
      options_of("carriers-" + std::to_string(layout.tp) + std::to_string(layout.pp), layout);
  {
    World world(options);
    std::set<std::string> expected;
    if (world.dp().size() > 1) expected.insert("student.dp");
    if (world.tp().size() > 1) expected.insert("student.tp");
    if (world.embedding().size() > 1) expected.insert("student.embedding");
    require(stand_in_groups(options) == expected, "those groups are connected, and no other");

    for (Group* group : {&world.all(), &world.mp(), &world.dp_pp(), &world.pp()}) {
      Values values(*group, at::kFloat, world.device());
      at::Tensor here = values.here(), there = values.there(here);
      group->all_reduce(here);
      group->all_reduce(there);
      require(there.device() == world.device() && at::equal(there.cpu(), here),
              group->name() + " sums through host memory");
    }
    require(stand_in_collectives(options) == 0, "none of them ran on the device");

    Values values(world.tp(), at::kFloat, world.device());
    at::Tensor tensor = values.there(values.here());
    world.tp().all_reduce(tensor);
    require(stand_in_collectives(options) == (world.tp().size() > 1 ? 1 : 0), "tp's runs there");
  }
  require_sound(options);
}

}  // namespace

void sound_scenario() {
  collectives();
  carriers({.tp = 2, .dp = 2});
  carriers({.tp = 2, .pp = 2});
  carriers({.dp = 4});
  missing_gradients();
}

// What fails on the device is told by the next call of a group that is not connected there: here
// rank 1 leaves out a sum of tp's, and all go on with numbers of the host.
void told_scenario() {
  const World::Options options = on_stand_in(parallel::testing::child_world_options());
  World world(options);
  at::Tensor tensor = at::ones({kCount}, at::TensorOptions().device(world.device()));
  Work work;
  if (world.rank() != 1) work = world.tp().all_reduce_async(tensor);
  if (world.rank() > 1) work.wait();

  const Error error = parallel::testing::error_of([&] {
    for (int i = 0; i < 6'000; ++i) {
      world.all().all_reduce(int64_t{1});
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  });
  const std::string text = error.what();
  if (world.rank() == 0)
    require(text.find("a collective on the device failed") != std::string::npos &&
                text.find("student.tp") != std::string::npos,
            text);
}

}  // namespace retort::test

int main(int argc, char** argv) {
  using namespace retort;
  ::setenv("STAND_IN_DEVICES", "4", 1);  // also for the children
  test::stand_in_device();
  std::map<std::string, std::function<void()>> scenarios{{"sound", test::sound_scenario},
                                                         {"told", test::told_scenario}};
  for (int64_t series = 0; series < test::kMistakeSeries; ++series)
    scenarios[test::mistakes_name(series)] = [series] { test::mistakes_scenario(series); };
  return parallel::testing::ranks_or_tests(argc, argv, scenarios);
}

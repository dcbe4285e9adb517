// Asynchronous messages, the exchanges made of them (all_gather_into, reduce_scatter), and the
// groups of a model-parallel world.
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <csignal>
#include <memory>

#include "base/sizes.h"
#include "tests/parallel/rank_process.h"

namespace retort::parallel::testing {
namespace {

using test::say;
using namespace std::chrono_literals;

Deadline soon() { return Deadline::after(90s); }

// Values whose sum depends on the order of the additions.
at::Tensor uneven_values(int rank, int64_t numel, int salt = 0) {
  return (at::arange(numel, at::kDouble) * 1.37 + rank * 2.71 + salt)
      .sin()
      .mul(std::pow(10.0, rank % 3))
      .to(at::kFloat);
}

void check_reduce_scatter(Group& group, int64_t k, int salt) {
  const int n = group.size();
  at::Tensor expected = uneven_values(0, n * k, salt);
  for (int r = 1; r < n; ++r)
    expected = expected + uneven_values(r, n * k, salt);
  expected = expected.narrow(0, group.rank() * k, k);

  at::Tensor in = uneven_values(group.rank(), n * k, salt);
  at::Tensor out = at::empty({k});
  group.reduce_scatter(out, in);
  require_equal(out, expected, "reduce_scatter sums in rank order");
  require_equal(in, uneven_values(group.rank(), n * k, salt), "reduce_scatter leaves its input");

  // In place: the output is this rank's own part of the input.
  at::Tensor own = in.narrow(0, group.rank() * k, k);
  Work work = group.reduce_scatter_async(own, in);
  work.wait();
  work.wait();
  require_equal(own, expected, "reduce_scatter in place");
  in.narrow(0, group.rank() * k, k)
      .copy_(uneven_values(group.rank(), n * k, salt).narrow(0, group.rank() * k, k));
  require_equal(in, uneven_values(group.rank(), n * k, salt),
                "reduce_scatter in place leaves the other parts");
}

void check_all_gather_into(Group& group, at::ScalarType dtype) {
  const int n = group.size();
  const auto part = [&](int r) {
    return (at::arange(5, at::kLong) + 7 * r).remainder(11).to(dtype);
  };
  std::vector<at::Tensor> parts;
  for (int r = 0; r < n; ++r)
    parts.push_back(part(r));
  const at::Tensor expected = at::cat(parts);
  at::Tensor out = at::zeros({n * 5}, dtype);
  group.all_gather_into(out, part(group.rank()));
  require_equal(out, expected, std::string("all_gather_into ") + c10::toString(dtype));
  out.zero_();
  at::Tensor own = out.narrow(0, group.rank() * 5, 5);
  own.copy_(part(group.rank()));
  group.all_gather_into_async(out, own).wait();
  require_equal(out, expected, std::string("all_gather_into in place ") + c10::toString(dtype));
}

// Every rank sends to the next one and has several messages on their way; with waiting sends this
// ring would stand still.
void check_ring(Group& group) {
  const int next = (group.rank() + 1) % group.size();
  const int previous = (group.rank() + group.size() - 1) % group.size();
  constexpr int kMessages = 4;
  std::vector<at::Tensor> in;
  std::vector<Work> works;
  for (int m = 0; m < kMessages; ++m)
    works.push_back(group.send_async(uneven_values(group.rank(), 50'000, m), next, m / 2));
  for (int m = 0; m < kMessages; ++m) {
    in.push_back(at::empty({50'000}));
    works.push_back(group.recv_async(in.back(), previous, m / 2));
  }
  for (Work& work : works)
    work.wait();
  for (int m = 0; m < kMessages; ++m)
    require_equal(in[to_size(m)], uneven_values(previous, 50'000, m),
                  "messages of one tag keep their order");
  group.send_async(at::zeros({0}), next).wait();  // sends nothing
}

void check_refusals(Group& group) {
  const auto code = [](auto&& body) { return error_of(body).code(); };
  at::Tensor k = at::zeros({4});
  at::Tensor nk = at::zeros({4 * group.size()});
  at::Tensor wrong = at::zeros({4 * group.size() + 1});
  at::Tensor half = nk.to(at::kBFloat16);
  at::Tensor half_part = k.to(at::kBFloat16);
  const int next = (group.rank() + 1) % group.size();
  require(code([&] { group.reduce_scatter(k, wrong); }) == ErrorCode::kInvalidArgument,
          "sizes of reduce_scatter");
  require(code([&] { group.all_gather_into(wrong, k); }) == ErrorCode::kInvalidArgument,
          "sizes of all_gather_into");
  require(code([&] { group.all_gather_into(half, k); }) == ErrorCode::kInvalidArgument,
          "two dtypes");
  require(code([&] { group.reduce_scatter(half_part, half); }) == ErrorCode::kInvalidArgument,
          "sums are of fp32");
  require(code([&] { group.send_async(k, next, Group::kMaxMessageTags); }) ==
              ErrorCode::kInvalidArgument,
          "tag too large");
  require(code([&] { group.recv_async(k, next, -1); }) == ErrorCode::kInvalidArgument,
          "negative tag");
  require(code([&] { group.recv_async(k, group.rank()); }) == ErrorCode::kInvalidArgument,
          "from itself");
}

// Several exchanges in flight at once, waited for in another order than launched, and a collective
// of Gloo between them.
void check_exchanges_in_flight(Group& group) {
  const int n = group.size();
  std::vector<at::Tensor> in, out;
  std::vector<Work> works;
  for (int i = 0; i < 3; ++i) {
    in.push_back(uneven_values(group.rank(), n * 700, i));
    out.push_back(at::empty({700}));
  }
  at::Tensor ones = at::ones({9});
  for (size_t i = 0; i < 3; ++i) {
    works.push_back(group.reduce_scatter_async(out[i], in[i]));
    if (i == 1) works.push_back(group.all_reduce_async(ones));
  }

  for (size_t i = works.size(); i-- > 0;)
    works[i].wait();
  require_equal(ones, at::full({9}, static_cast<float>(n)), "all_reduce between exchanges");
  for (size_t i = 0; i < 3; ++i) {
    at::Tensor again = at::empty({700});
    group.reduce_scatter(again, in[i]);
    require_equal(out[i], again, "exchanges in flight do not mix");
  }
}

void exchange_scenario() {
  World world(child_world_options());
  Group& group = world.dp();
  check_refusals(group);  // they leave the group usable
  for (const int64_t k : {int64_t{1}, int64_t{1000}, int64_t{3001}})
    check_reduce_scatter(group, k, 3);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kLong, at::kBool})
    check_all_gather_into(group, dtype);
  check_ring(group);
  check_exchanges_in_flight(group);

  at::Tensor none = at::zeros({0});
  group.reduce_scatter(none, none);
  group.all_gather_into(none, none);
}

TEST(Messages, ExchangesOfTwoAndThreeRanks) {
  for (const int64_t ranks : {2, 3}) {
    StoreServer store("127.0.0.1");
    expect_success(spawn_ranks(store, {.scenario = "exchange", .layout = {.dp = ranks}}, ranks));
  }
}

TEST(Messages, OneRankExchangesWithItself) {
  World world({.role = "student"});
  at::Tensor in = at::arange(5, at::kFloat);
  at::Tensor out = at::zeros({5});
  world.dp().reduce_scatter(out, in);
  EXPECT_TRUE(at::equal(out, in));
  out.zero_();
  world.mp().all_gather_into(out, in);
  EXPECT_TRUE(at::equal(out, in));
  EXPECT_EQ(world.mp().name(), "student.mp");
  EXPECT_EQ(world.dp_pp().size(), 1);
  EXPECT_EQ(world.embedding().size(), 1);
}

// Each group holds the ranks it should, and they can talk.
void check_group(Group& group, const std::string& name, const std::vector<int>& ranks) {
  require(group.name() == "student." + name, group.name());
  require(group.ranks() == ranks, name + " has the right ranks");
  int64_t sum = 0;
  for (const int r : ranks)
    sum += r;
  require(group.all_reduce(int64_t{group.ranks()[to_size(group.rank())]}) == sum,
          name + " reduces over them");
}

// Layout tp 2, pp 2.
void tensor_and_pipeline_scenario() {
  World world(child_world_options());
  const int tp = to_int(world.coordinate().tp);
  check_group(world.mp(), "mp", {0, 1, 2, 3});
  check_group(world.dp_pp(), "dp_pp", {tp, tp + 2});
  check_group(world.embedding(), "embedding", {tp, tp + 2});
  check_group(world.dp(), "dp", {to_int(world.rank())});
}

// Layout pp 3, dp 2: the stage between is in no embedding group.
void pipeline_and_data_scenario() {
  World world(child_world_options());
  const int dp = to_int(world.coordinate().dp);
  const int me = to_int(world.rank());
  check_group(world.mp(), "mp", {dp, dp + 2, dp + 4});
  check_group(world.dp_pp(), "dp_pp", {0, 1, 2, 3, 4, 5});
  check_group(world.embedding(), "embedding",
              world.coordinate().pp == 1 ? std::vector<int>{me} : std::vector<int>{dp, dp + 4});
}

TEST(Messages, GroupsOfAModelParallelWorld) {
  StoreServer store("127.0.0.1");
  expect_success(
      spawn_ranks(store, {.scenario = "tensor_and_pipeline", .layout = {.tp = 2, .pp = 2}}, 4));
  StoreServer other("127.0.0.1");
  expect_success(
      spawn_ranks(other, {.scenario = "pipeline_and_data", .layout = {.pp = 3, .dp = 2}}, 6));
}

// Two worlds in each of two processes, used in opposite orders.
void two_new_worlds_scenario() {
  World::Options student = child_world_options();
  World::Options teacher = child_world_options();
  teacher.role = "teacher";
  teacher.store_prefix = "run/teacher/0/";
  teacher.layout = {.pp = 2};
  World a(student), b(teacher);
  require(a.mp().size() == 2 && a.embedding().size() == 1 && b.mp().size() == 2 &&
              b.embedding().size() == 2,
          "groups");

  at::Tensor in_a = uneven_values(to_int(a.rank()), 2000);
  at::Tensor out_a = at::empty({1000});
  at::Tensor in_b = at::full({1000}, b.rank(), at::kFloat);
  at::Tensor out_b = at::empty({2000});
  Work wa, wb;
  if (a.rank() == 0) {
    wa = a.mp().reduce_scatter_async(out_a, in_a);
    wb = b.embedding().all_gather_into_async(out_b, in_b);
  } else {
    wb = b.embedding().all_gather_into_async(out_b, in_b);
    wa = a.mp().reduce_scatter_async(out_a, in_a);
  }

  wa.wait();
  wb.wait();
  require_equal(out_a,
                (uneven_values(0, 2000) + uneven_values(1, 2000)).narrow(0, 1000 * a.rank(), 1000),
                "world a");
  require_equal(out_b, at::cat({at::zeros({1000}), at::ones({1000})}), "world b");
}

TEST(Messages, TwoWorldsOfAProcessDoNotMeet) {
  StoreServer store("127.0.0.1");
  expect_success(spawn_ranks(store, {.scenario = "two_new_worlds", .layout = {.tp = 2}}, 2));
}

// A world for each operation: a failure makes every group of the same ranks unusable.
void stopped_exchange_scenario() {
  std::vector<std::unique_ptr<World>> worlds;
  for (int i = 0; i < 3; ++i) {
    World::Options options = child_world_options();
    options.store_prefix += std::to_string(i) + "/";
    worlds.push_back(std::make_unique<World>(options));
    worlds.back()->all().barrier();
  }
  if (worlds.front()->rank() == 1) raise(SIGSTOP);

  at::Tensor in = at::ones({600});
  at::Tensor part = at::empty({300});
  const auto report = [](const Error& e) {
    say(std::string(to_string(e.code())));
    say(e.what());
  };
  report(error_of([&] { worlds[0]->dp().reduce_scatter(part, in); }));
  report(error_of([&] { worlds[1]->all().all_gather_into(in, part); }));
  report(error_of([&] { worlds[2]->dp_pp().recv(in, 1); }));
  require(error_of([&] { worlds[0]->all().barrier(); }).code() == ErrorCode::kCollective,
          "groups of the same ranks fail together");
}

TEST(Messages, AStoppedRankIsATimeoutThatNamesGroupAndOperation) {
  StoreServer store("127.0.0.1");
  auto ranks =
      spawn_ranks(store, {.scenario = "stopped_exchange", .layout = {.dp = 2}, .timeout = 5s}, 2);
  for (const std::string expected :
       {"group=student.dp rank=0 op=reduce_scatter sequence=1 shape=Float[600]",
        "group=student.all rank=0 op=all_gather_into sequence=2 shape=Float[300]",
        "group=student.dp_pp rank=0 op=recv sequence=1 shape=Float[600]"}) {
    EXPECT_EQ(ranks[0].read_line(soon()), "timeout");
    const std::string text = ranks[0].read_line(soon());
    EXPECT_NE(text.find(expected), std::string::npos) << text;
  }
  EXPECT_EQ(ranks[0].wait(soon()), 0);
}

}  // namespace
}  // namespace retort::parallel::testing

int main(int argc, char** argv) {
  using namespace retort::parallel::testing;
  return ranks_or_tests(argc, argv,
                        {{"exchange", exchange_scenario},
                         {"tensor_and_pipeline", tensor_and_pipeline_scenario},
                         {"pipeline_and_data", pipeline_and_data_scenario},
                         {"two_new_worlds", two_new_worlds_scenario},
                         {"stopped_exchange", stopped_exchange_scenario}});
}

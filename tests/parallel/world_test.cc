// Worlds of one and of several processes: collectives, two worlds in one process, and how a lost,
// stopped or absent rank is reported.
#include "parallel/world.h"

#include <gtest/gtest.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <csignal>
#include <thread>

#include "base/sizes.h"
#include "tests/parallel/rank_process.h"

namespace retort::parallel::testing {
namespace {

using test::ChildProcess;
using test::say;
using namespace std::chrono_literals;

Deadline soon() { return Deadline::after(90s); }

void check_reductions(Group& group) {
  int64_t sum = 0;
  int64_t least = group.ranks().front();
  int64_t most = group.ranks().back();
  for (int r : group.ranks())
    sum += r;
  const int me = group.ranks()[to_size(group.rank())];

  for (const at::ScalarType dtype :
       {at::kFloat, at::kDouble, at::kLong, at::kInt, at::kBFloat16, at::kHalf}) {
    const auto all = [&](int64_t value) { return at::full({3, 2}, value, dtype); };
    at::Tensor t = all(me);
    group.all_reduce(t);
    require_equal(t, all(sum), group.name() + " sum " + c10::toString(dtype));
    t = all(me);
    group.all_reduce(t, ReduceOp::kMax);
    require_equal(t, all(most), group.name() + " max");
    t = all(me);
    Work work = group.all_reduce_async(t, ReduceOp::kMin);
    work.wait();
    work.wait();
    require_equal(t, all(least), group.name() + " min");
  }

  require(group.all_reduce(int64_t{me}, ReduceOp::kSum) == sum, "int64 sum");
  require(group.all_reduce(0.5 * me, ReduceOp::kMax) == 0.5 * static_cast<double>(most),
          "double max");
  at::Tensor empty = at::zeros({0, 4});
  group.all_reduce(empty);
}

void check_broadcasts(Group& group) {
  for (int root = 0; root < group.size(); ++root) {
    at::Tensor t = at::full({2, 3}, group.rank() == root ? 7 + root : 0, at::kInt);
    group.broadcast(t, root);
    require_equal(t, at::full({2, 3}, 7 + root, at::kInt), "broadcast");
    at::Tensor flag = at::full({2}, group.rank() == root, at::kBool);
    group.broadcast(flag, root);
    require_equal(flag, at::ones({2}, at::kBool), "bool broadcast");
    const std::string text = "from " + std::string(to_size(root) * 1000, 'x');
    require(group.broadcast(group.rank() == root ? text : "", root) == text, "string broadcast");
    require(group.broadcast(group.rank() == root ? "" : "ignored", root).empty(),
            "empty string broadcast");
  }
}

void check_all_gathers(Group& group) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kBool, at::kLong}) {
    const at::Tensor mine = at::full({2, 2}, group.rank() % 2, dtype);
    const at::Tensor gathered = group.all_gather(mine.t());
    require(gathered.sizes() == at::IntArrayRef({group.size(), 2, 2}), "shape of all_gather");
    for (int r = 0; r < group.size(); ++r)
      require_equal(gathered[r], at::full({2, 2}, r % 2, dtype), "all_gather");
  }

  // Texts of other lengths, with bytes that end no string.
  const auto text_of = [](int rank) {
    return std::string(to_size(rank) * 700, static_cast<char>('a' + rank)) + std::string(1, '\0');
  };
  const std::vector<std::string> texts = group.all_gather(text_of(group.rank()));
  require(texts.size() == to_size(group.size()), "texts of all_gather");
  for (int r = 0; r < group.size(); ++r)
    require(texts[to_size(r)] == text_of(r), "text all_gather");

  const std::string last = group.rank() + 1 == group.size() ? "last" : "";
  require(group.all_gather(last).back() == "last", "text all_gather beside empty ones");
  for (const std::string& text : group.all_gather(std::string()))
    require(text.empty(), "empty text all_gather");
}

// Around the ring, two messages with their tags. A send waits for its receiver, so only rank 0
// sends before it receives.
void check_messages(Group& group) {
  const int next = (group.rank() + 1) % group.size();
  const int previous = (group.rank() + group.size() - 1) % group.size();
  const auto pass = [&] {
    group.send(at::full({4}, group.rank(), at::kBFloat16), next, 1);
    group.send(at::full({4}, -group.rank(), at::kBFloat16), next, 2);
  };
  at::Tensor first = at::empty({4}, at::kBFloat16);
  at::Tensor second = at::empty({4}, at::kBFloat16);
  const auto take = [&] {
    group.recv(first, previous, 1);
    group.recv(second, previous, 2);
  };

  if (group.rank() == 0) pass();
  take();
  if (group.rank() != 0) pass();
  require_equal(first, at::full({4}, previous, at::kBFloat16), "recv tag 1");
  require_equal(second, at::full({4}, -previous, at::kBFloat16), "recv tag 2");
}

}  // namespace

void collectives_scenario() {
  World world(child_world_options());
  const Coordinate c = world.coordinate();
  const int tp = to_int(c.tp);
  const int dp = to_int(c.dp);
  require(
      world.all().ranks() == std::vector<int>{0, 1, 2, 3} && world.all().name() == "student.all",
      "all");
  require(world.tp().ranks() == std::vector<int>{2 * dp, 2 * dp + 1} && world.tp().rank() == tp,
          "tp");
  require(world.dp().ranks() == std::vector<int>{tp, tp + 2} && world.dp().rank() == dp, "dp");
  require(world.pp().ranks() == std::vector<int>{to_int(world.rank())} && world.pp().size() == 1,
          "pp");

  for (Group* group : {&world.all(), &world.tp(), &world.dp(), &world.pp()}) {
    check_reductions(*group);
    check_broadcasts(*group);
    check_all_gathers(*group);
    if (group->size() > 1) check_messages(*group);
    group->barrier();
  }

  // What is refused leaves the group usable.
  at::Tensor t = at::zeros({2, 3});
  at::Tensor transposed = t.t();
  require(
      error_of([&] { world.tp().all_reduce(transposed); }).code() == ErrorCode::kInvalidArgument,
      "not contiguous");
  require(error_of([&] { world.tp().broadcast(t, 2); }).code() == ErrorCode::kInvalidArgument,
          "root outside");
  require(error_of([&] { world.tp().send(t, tp); }).code() == ErrorCode::kInvalidArgument,
          "send to itself");
  world.all().barrier();
}

TEST(World, FourRanksRunEveryCollectiveOnEveryGroup) {
  StoreServer store("127.0.0.1");
  auto ranks = spawn_ranks(store, {.scenario = "collectives", .layout = {.tp = 2, .dp = 2}}, 4);
  expect_success(std::move(ranks));
}

// The two processes use their two worlds in opposite orders; were they one world, the operations
// would meet.
void two_worlds_scenario() {
  World::Options student = child_world_options();
  World::Options teacher = child_world_options();
  teacher.role = "teacher";
  teacher.store_prefix = "run/teacher/0/";
  teacher.layout = {.dp = 2};
  auto a = std::make_unique<World>(student);
  auto b = std::make_unique<World>(teacher);
  require(a->tp().size() == 2 && a->dp().size() == 1 && b->tp().size() == 1 && b->dp().size() == 2,
          "layouts");

  at::Tensor in_a = at::full({100}, 1.0 + static_cast<double>(a->rank()));
  at::Tensor in_b = at::full({7}, 10.0);
  if (a->rank() == 0) {
    Work wa = a->tp().all_reduce_async(in_a);
    b->dp().all_reduce(in_b);
    wa.wait();
  } else {
    Work wb = b->dp().all_reduce_async(in_b);
    a->tp().all_reduce(in_a);
    wb.wait();
  }
  require_equal(in_a, at::full({100}, 3.0f), "world a");
  require_equal(in_b, at::full({7}, 20.0f), "world b");
  a.reset();
  require(b->all().all_reduce(int64_t{1}) == 2, "world b lives on after a");
}

TEST(World, OneProcessHoldsTwoWorlds) {
  StoreServer store("127.0.0.1");
  auto ranks = spawn_ranks(store, {.scenario = "two_worlds", .layout = {.tp = 2}}, 2);
  expect_success(std::move(ranks));
}

namespace {

// The survivor's report: the error's code and text, then what the next call says.
void report_failure(World& world) {
  const Error first = error_of([&] {
    while (true) {
      at::Tensor t = at::ones({1000, 5});
      world.dp().all_reduce(t);
    }
  });
  say(std::string(to_string(first.code())));
  say(first.what());
  const Error second = error_of([&] { world.dp().barrier(); });
  require(second.code() == ErrorCode::kCollective, "a failed group stays failed");
  require(std::string(second.what()).find("failed before") != std::string::npos, "it says so");
}

void expect_named(const std::string& text, int rank) {
  for (const std::string part :
       {"group=student.dp", "op=all_reduce", "shape=Float[1000, 5]", "sequence="})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_NE(text.find("rank=" + std::to_string(rank) + " "), std::string::npos) << text;
}

}  // namespace

void lost_rank_scenario() {
  World world(child_world_options());
  world.dp().barrier();
  if (world.rank() == 2) raise(SIGKILL);
  report_failure(world);
}

TEST(World, SurvivorsOfAKilledRankGetANamedError) {
  StoreServer store("127.0.0.1");
  auto ranks =
      spawn_ranks(store, {.scenario = "lost_rank", .layout = {.dp = 3}, .timeout = 20s}, 3);
  EXPECT_EQ(ranks[2].wait(soon()), 128 + SIGKILL);
  for (int r = 0; r < 2; ++r) {
    ChildProcess& survivor = ranks[to_size(r)];
    const std::string code = survivor.read_line(soon());
    EXPECT_TRUE(code == "collective" || code == "timeout") << code;
    expect_named(survivor.read_line(soon()), r);
    EXPECT_EQ(survivor.wait(soon()), 0);
  }
}

void stopped_rank_scenario() {
  World world(child_world_options());
  world.dp().barrier();
  if (world.rank() == 1) raise(SIGSTOP);
  report_failure(world);
}

TEST(World, AStoppedRankIsATimeoutOfTheGroup) {
  StoreServer store("127.0.0.1");
  auto ranks =
      spawn_ranks(store, {.scenario = "stopped_rank", .layout = {.dp = 2}, .timeout = 10s}, 2);
  EXPECT_EQ(ranks[0].read_line(soon()), "timeout");
  expect_named(ranks[0].read_line(soon()), 0);
  EXPECT_EQ(ranks[0].wait(soon()), 0);
}

void absent_rank_scenario() {
  const Error e = error_of([] { World world(child_world_options()); });
  say(std::string(to_string(e.code())));
  say(e.what());
}

TEST(World, RanksThatNeverArriveAreNamed) {
  StoreServer store("127.0.0.1");
  auto ranks = spawn_ranks(store, {.scenario = "absent_rank", .layout = {.dp = 3}, .timeout = 2s},
                           1, /*first=*/1);
  EXPECT_EQ(ranks[0].read_line(soon()), "timeout");
  const std::string text = ranks[0].read_line(soon());
  EXPECT_NE(text.find("role 'student': rank(s) 0, 2 of 3 did not arrive within 2000 ms"),
            std::string::npos)
      << text;
  EXPECT_EQ(ranks[0].wait(soon()), 0);
}

TEST(World, OneRankNeedsNoStore) {
  World world({.role = "student"});
  EXPECT_EQ(world.size(), 1);
  EXPECT_EQ(world.coordinate(), Coordinate{});
  EXPECT_EQ(world.dp().name(), "student.dp");
  at::Tensor t = at::ones({3});
  world.all().all_reduce(t);
  world.all().broadcast(t, 0);
  world.all().all_reduce_async(t).wait();
  EXPECT_TRUE(at::equal(t, at::ones({3})));
  EXPECT_EQ(world.all().all_gather(t).sizes(), at::IntArrayRef({1, 3}));
  EXPECT_EQ(world.all().broadcast(std::string("x"), 0), "x");
  EXPECT_EQ(world.all().all_gather(std::string("x")), std::vector<std::string>{"x"});
  EXPECT_EQ(world.all().all_reduce(int64_t{5}), 5);
}

ErrorCode code_of(const World::Options& options) {
  return error_of([&] { World world(options); }).code();
}

TEST(World, RefusesOptionsThatCannotWork) {
  EXPECT_EQ(code_of({.role = ""}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of({.role = "student", .layout = {.tp = 0}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of({.role = "student", .rank = 1}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of({.role = "student", .timeout = 0ms}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of({.role = "student", .layout = {.device = Device::kCuda}}),
            ErrorCode::kUnavailable);
}

TEST(Store, KeysLiveUnderTheirPrefix) {
  StoreServer server("127.0.0.1");
  ASSERT_NE(server.port(), 0);
  StoreClient a("127.0.0.1", server.port(), "run/a/", 30s),
      also_a("127.0.0.1", server.port(), "run/a/", 30s);
  StoreClient b("127.0.0.1", server.port(), "run/b/", 30s);
  a.set("key", std::string("v\0w", 3));
  EXPECT_EQ(also_a.get("key", soon()), std::string("v\0w", 3));
  // there already: no wait
  EXPECT_EQ(also_a.get("key", Deadline::after(0ms)), std::string("v\0w", 3));
  EXPECT_TRUE(also_a.contains("key"));
  EXPECT_FALSE(b.contains("key"));
  EXPECT_EQ(a.add("count", 2), 2);
  EXPECT_EQ(also_a.add("count", 3), 5);
  EXPECT_EQ(b.add("count", 1), 1);
}

TEST(Store, AWaitEndsWhenTheKeyComes) {
  StoreServer server("127.0.0.1");
  StoreClient reader("127.0.0.1", server.port(), "p/", 30s);
  std::thread writer(
      [&] { StoreClient("127.0.0.1", server.port(), "p/", 30s).set("late", "here"); });
  EXPECT_EQ(reader.get("late", soon()), "here");
  writer.join();
}

TEST(Store, TimeoutsNameTheKey) {
  StoreServer server("127.0.0.1");
  StoreClient client("127.0.0.1", server.port(), "run/student/0/", 30s);
  for (const auto wait : {0ms, 100ms}) {
    const Error e = error_of([&] { client.get("address/1", Deadline::after(wait)); });
    EXPECT_EQ(e.code(), ErrorCode::kTimeout);
    EXPECT_NE(std::string(e.what()).find("'run/student/0/address/1'"), std::string::npos)
        << e.what();
  }
  client.set("address/1", "x");  // the client is usable after a timeout
  EXPECT_EQ(client.get("address/1", soon()), "x");
}

TEST(Store, AStoreThatIsGoneIsAPeerLost) {
  auto server = std::make_unique<StoreServer>("127.0.0.1");
  const uint16_t port = server->port();
  StoreClient client("127.0.0.1", port, "", 30s);
  client.set("a", "b");
  server.reset();
  EXPECT_EQ(error_of([&] { client.get("a", soon()); }).code(), ErrorCode::kPeerLost);
  const Error e = error_of([&] { StoreClient("127.0.0.1", port, "", 500ms); });
  EXPECT_EQ(e.code(), ErrorCode::kTimeout);
  EXPECT_NE(std::string(e.what()).find("127.0.0.1:" + std::to_string(port)), std::string::npos)
      << e.what();
}

TEST(Store, ListensOnItsHostOnly) {
  StoreServer server("127.0.0.1");
  EXPECT_THROW(StoreClient("127.0.0.2", server.port(), "", 300ms), Error);
  EXPECT_EQ(error_of([&] { StoreServer again("127.0.0.1", server.port()); }).code(),
            ErrorCode::kUnavailable);
  EXPECT_EQ(error_of([&] { StoreServer nowhere("no.such.host.invalid"); }).code(),
            ErrorCode::kInvalidArgument);
}

}  // namespace retort::parallel::testing

int main(int argc, char** argv) {
  using namespace retort::parallel::testing;
  return ranks_or_tests(argc, argv,
                        {{"collectives", collectives_scenario},
                         {"two_worlds", two_worlds_scenario},
                         {"lost_rank", lost_rank_scenario},
                         {"stopped_rank", stopped_rank_scenario},
                         {"absent_rank", absent_rank_scenario},
                         {"grad_sync", grad_sync_scenario}});
}

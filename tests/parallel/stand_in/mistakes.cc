// What goes wrong between ranks on devices, one mistake after the other, each of rank 1, and what
// every rank hears of it.
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/sizes.h"
#include "tests/parallel/rank_process.h"
#include "tests/parallel/stand_in/backends.h"
#include "tests/parallel/stand_in/stand_in_ranks.h"
#include "tests/support/sanitizer.h"

namespace retort::test {
namespace {

using namespace std::chrono_literals;
using parallel::Group;
using parallel::ReduceOp;
using parallel::StoreClient;
using parallel::Work;
using parallel::World;

constexpr int kWrong = 1;

// One rank in one mistake.
struct Rank {
  World& world;
  StoreClient& store;
  std::vector<Work>& kept;  // outlives the world
  bool wrong = false;

  at::Tensor ones(int64_t count = 16, at::ScalarType dtype = at::kFloat) const {
    return at::ones({count}, at::TensorOptions(dtype).device(world.device()));
  }
  void all_reduce(Group& group, int64_t count = 16, at::ScalarType dtype = at::kFloat) const {
    at::Tensor tensor = ones(count, dtype);
    group.all_reduce(tensor);
  }
  void broadcast(int64_t count = 16, int root = 0) const {
    at::Tensor tensor = ones(count);
    world.all().broadcast(tensor, root);
  }
  void reduce_scatter(int64_t count) const {
    at::Tensor part = ones(count);
    world.all().reduce_scatter(part, ones(4 * count));
  }
  // Both are started before one is waited for.
  void all_reduce_both(Group& first, Group& second) const {
    at::Tensor one = ones(), two = ones();
    Work a = first.all_reduce_async(one), b = second.all_reduce_async(two);
    a.wait();
    b.wait();
  }
  void await_failure_of_rank_0() const { store.get("failed", Deadline::after(60s * kSlowness)); }
};

struct Mistake {
  std::string name;
  std::function<void(const Rank&)> run;
  // What every rank's message has, besides "rank 1" and another rank.
  std::vector<std::string> named;
  std::chrono::milliseconds timeout = 60s;  // a short one where a rank does not come
  // The rank that is wrong has an error of its own.
  bool has_own_error = false;
};

// Half of it passes before a rank is missed.
constexpr std::chrono::milliseconds kSoon = 24s * kSlowness;

std::vector<Mistake> left_out() {
  return {
      // One operation too few, where nothing comes behind it or something does.
      {"a sum is left out at the end",
       [](const Rank& r) {
         r.all_reduce(r.world.all());
         if (!r.wrong) r.all_reduce(r.world.all());
       },
       {"operation 2 of student.all (all_reduce sum of 64 bytes of Float)",
        "rank 1 has ended the group after operation 1"}},
      {"a sum is left out, and the rank does something else",
       [](const Rank& r) {
         r.world.all().barrier();
         if (r.wrong)
           r.await_failure_of_rank_0();
         else
           r.all_reduce(r.world.all());
       },
       {"operation 1 of student.all (all_reduce sum of 64 bytes of Float)",
        "timed out: not by rank 1 within"},
       kSoon},
      {"a sum is left out before a broadcast",
       [](const Rank& r) {
         if (!r.wrong) r.all_reduce(r.world.all());
         r.broadcast();
       },
       {"operation 1 of student.all", "all_reduce sum of 64 bytes of Float",
        "broadcast from rank 0 of 64 bytes of Byte"}},
      {"one of several buckets is left out",
       [](const Rank& r) {
         std::vector<at::Tensor> buckets{r.ones(16), r.ones(32), r.ones(16)};
         std::vector<Work> works;
         for (size_t i = 0; i < buckets.size(); ++i)
           if (!r.wrong || i != 1) works.push_back(r.world.tp().all_reduce_async(buckets[i]));
         for (Work& work : works)
           work.wait();
       },
       {"operation 2 of student.", "all_reduce sum of 128 bytes", "all_reduce sum of 64 bytes"}},

      // One too many, one where nobody else is, or none any more.
      {"a sum is one too many",
       [](const Rank& r) {
         r.all_reduce(r.world.all());
         if (r.wrong) r.all_reduce(r.world.all());
       },
       {"operation 2 of student.all (all_reduce", "has ended the group after operation 1"}},
      {"a sum goes to another group of the same ranks",
       [](const Rank& r) {
         r.world.all().barrier();
         r.all_reduce(r.wrong ? r.world.mp() : r.world.tp());
       },
       {"operation 1 of student.tp (all_reduce", "operation 1 of student.mp (all_reduce",
        "timed out", "instead"},
       kSoon},
      {"a rank leaves by an error",
       [](const Rank& r) {
         r.all_reduce(r.world.all());
         if (r.wrong) throw Error(ErrorCode::kCorrupt, "its own failure");
         r.all_reduce(r.world.all());
       },
       {"rank 1 gave up student.all after operation 1"},
       60s,
       true}};
}

std::vector<Mistake> differing() {
  return {
      // Sums of another place, size or dtype.
      {"a sum and a broadcast are swapped",
       [](const Rank& r) {
         if (!r.wrong) r.all_reduce(r.world.all());
         r.broadcast();
         if (r.wrong) r.all_reduce(r.world.all());
       },
       {"operation 1 of student.all", "all_reduce sum of 64", "broadcast from rank 0 of 64"}},
      {"a sum of another size",
       [](const Rank& r) { r.all_reduce(r.world.dp(), r.wrong ? 17 : 16); },
       {"operation 1 of student.dp", "of 64 bytes", "of 68 bytes"}},
      {"a sum of another dtype",
       [](const Rank& r) { r.all_reduce(r.world.all(), 16, r.wrong ? at::kInt : at::kFloat); },
       {"operation 1 of student.all", "of 64 bytes of Float", "of 64 bytes of Int"}},
      {"a sum of another dtype and size",
       [](const Rank& r) { r.all_reduce(r.world.tp(), 16, r.wrong ? at::kBFloat16 : at::kFloat); },
       {"operation 1 of student.tp", "of 64 bytes of Float", "of 32 bytes of BFloat16"}},

      // Gathers, of which only the bytes are known.
      {"a gather of another dtype",
       [](const Rank& r) {
         r.world.all().all_gather(r.ones(16, r.wrong ? at::kHalf : at::kFloat));
       },
       {"operation 1 of student.all", "all_gather of 64 bytes", "all_gather of 32 bytes"}},
      {"a gather of another size",
       [](const Rank& r) { r.world.tp().all_gather(r.ones(r.wrong ? 15 : 16)); },
       {"operation 1 of student.tp", "all_gather of 64 bytes", "all_gather of 60 bytes"}},
      {"a gather in place of a sum",
       [](const Rank& r) {
         if (r.wrong)
           r.world.all().all_gather(r.ones());
         else
           r.all_reduce(r.world.all());
       },
       {"operation 1 of student.all", "all_reduce sum of 64 bytes", "all_gather of 64 bytes"}},

      // The same operation with another reduction, root or size.
      {"a maximum in place of a sum",
       [](const Rank& r) {
         at::Tensor tensor = r.ones();
         r.world.dp().all_reduce(tensor, r.wrong ? ReduceOp::kMax : ReduceOp::kSum);
       },
       {"operation 1 of student.dp", "all_reduce sum", "all_reduce max"}},
      {"a broadcast from another rank",
       [](const Rank& r) { r.broadcast(16, r.wrong ? 2 : 0); },
       {"operation 1 of student.all", "broadcast from rank 0", "broadcast from rank 2"}},
      {"a broadcast of another size",
       [](const Rank& r) { r.broadcast(r.wrong ? 4 : 16); },
       {"operation 1 of student.all", "of 64 bytes", "of 16 bytes"}},
      {"a reduce_scatter of another size",
       [](const Rank& r) { r.reduce_scatter(r.wrong ? 5 : 4); },
       {"operation 1 of student.all", "reduce_scatter sum of 64 bytes of Float",
        "reduce_scatter sum of 80 bytes of Float"}}};
}

std::vector<Mistake> untimely() {
  return {
      // Nobody waits for it.
      {"a sum is dropped",
       [](const Rank& r) {
         at::Tensor tensor = r.ones();
         Work work = r.world.all().all_reduce_async(tensor);
         if (!r.wrong) work.wait();
       },
       {"operation 1 of student.all (all_reduce sum of 64 bytes of Float) was never waited for by "
        "rank 1"}},
      {"a sum is kept beyond the world",
       [](const Rank& r) {
         at::Tensor tensor = r.ones();
         r.kept.push_back(r.world.tp().all_reduce_async(tensor));
         if (!r.wrong) r.kept.back().wait();
       },
       {"operation 1 of student.tp (all_reduce sum of 64 bytes of Float) was never waited for by "
        "rank 1, which started it with rank 0"}},

      // What an operation has in use is written to, by the program or by another operation.
      {"a result is written to",
       [](const Rank& r) {
         at::Tensor tensor = r.ones();
         Work work = r.world.dp().all_reduce_async(tensor);
         if (r.wrong) tensor.narrow(0, 3, 1).zero_();
         work.wait();
       },
       {"operation 1 of student.dp", "rank 1 wrote to its result before it had waited"}},
      {"an input is written to",
       [](const Rank& r) {
         at::Tensor part = r.ones(), whole = r.ones(64);
         Work work = r.world.all().all_gather_into_async(whole, part);
         if (r.wrong) part.zero_();
         work.wait();
       },
       {"operation 1 of student.all", "rank 1 wrote to its input before it had waited"}},
      {"a tensor is in two operations",
       [](const Rank& r) {
         at::Tensor tensor = r.ones(), other = r.ones();
         Work first = r.world.all().all_reduce_async(tensor);
         Work second = r.world.all().all_reduce_async(r.wrong ? tensor : other);
         first.wait();
         second.wait();
       },
       {"operation 2 of student.all", "rank 1 wrote to its result before it had waited"}}};
}

std::vector<Mistake> disordered() {
  return {
      // Both are started before either is waited for: the order alone tells.
      {"two groups are started in another order",
       [](const Rank& r) {
         World& w = r.world;
         r.all_reduce_both(r.wrong ? w.tp() : w.all(), r.wrong ? w.all() : w.tp());
       },
       {"the order of starts differs", "operation 1 of student.tp", "operation 1 of student.all"}},
      {"two groups of the same ranks are started in another order",
       [](const Rank& r) {
         World& w = r.world;
         r.all_reduce_both(r.wrong ? w.dp_pp() : w.dp(), r.wrong ? w.dp() : w.dp_pp());
       },
       {"the order of starts differs", "operation 1 of student.dp ", "operation 1 of student.dp_pp",
        "rank 3"}},

      // Each is waited for, so that ranks wait for each other until half of the timeout.
      {"a later operation comes before another group's",
       [](const Rank& r) {
         r.all_reduce(r.world.tp());
         if (r.wrong) r.all_reduce(r.world.tp());
         r.all_reduce(r.world.mp());
         if (!r.wrong) r.all_reduce(r.world.tp());
       },
       {"operation 2 of student.tp", "operation 1 of student.mp", "timed out"},
       kSoon},
      {"two groups wait for each other",
       [](const Rank& r) {
         r.world.all().barrier();
         r.all_reduce(r.wrong ? r.world.mp() : r.world.tp());
         r.all_reduce(r.wrong ? r.world.tp() : r.world.mp());
       },
       {"operation 1 of student.tp", "operation 1 of student.mp", "timed out", "instead"},
       kSoon}};
}

// The ranks leave a world that failed at times that differ by seconds, because Gloo takes as long
// to let go of its connections. The short timeouts run from here.
void await_all(const World::Options& options) {
  StoreClient store(options.store_host, options.store_port, options.store_prefix, options.timeout);
  store.set("here/" + std::to_string(options.rank), "1");
  for (int64_t rank = 0; rank < options.layout.world_size(); ++rank)
    store.get("here/" + std::to_string(rank), Deadline::after(60s * kSlowness));
}

// What this rank hears of it: an error of a call, or one that came up at the end of the world.
std::string message_of(const Mistake& mistake, World::Options options) {
  options = on_stand_in(std::move(options));
  options.device_groups = World::Options::DeviceGroups::kAll;
  StoreClient store(options.store_host, options.store_port, options.store_prefix, options.timeout);
  std::vector<Work> kept;
  std::string text;
  try {
    World world(options);
    mistake.run({world, store, kept, world.rank() == kWrong});
  } catch (const Error& e) {
    text = e.what();
  }
  if (options.rank == 0) store.set("failed", "1");
  if (text.empty()) text = stand_in_failure(options).value_or("no failure");
  return text;
}

// What the message should have and has not; empty if it has all.
std::string missing_in(const std::string& text, const Mistake& mistake, int64_t rank) {
  if (mistake.has_own_error && rank == kWrong)
    return text.find("its own failure") == std::string::npos ? " its own failure" : "";
  std::string missing;
  std::vector<std::string> named = mistake.named;
  named.push_back("rank 1");
  for (const std::string& part : named)
    if (text.find(part) == std::string::npos) missing += " '" + part + "'";
  for (const char* other : {"rank 0", "rank 2", "rank 3"})
    if (text.find(other) != std::string::npos) return missing;
  return missing + " another rank";
}

}  // namespace

void mistakes_scenario(int64_t series) {
  std::vector<Mistake> all;
  for (const auto& some : {left_out(), differing(), untimely(), disordered()})
    all.insert(all.end(), some.begin(), some.end());
  require(all.size() >= 20, "there are twenty mistakes");

  std::string wrong;
  for (size_t i = to_size(series); i < all.size(); i += kMistakeSeries) {
    const Mistake& mistake = all[i];
    World::Options options = parallel::testing::child_world_options();
    options.store_prefix += mistake.name + "/";
    await_all(options);
    options.timeout = mistake.timeout;
    const std::string text = message_of(mistake, options);
    const std::string missing = missing_in(text, mistake, options.rank);
    if (!missing.empty())
      wrong += "\n  " + mistake.name + ": rank " + std::to_string(options.rank) + " misses" +
               missing + " in: " + text;
  }
  require(wrong.empty(), wrong);
}

}  // namespace retort::test

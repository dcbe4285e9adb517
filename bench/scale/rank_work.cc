#include "bench/scale/rank_work.h"

#include <ATen/ops/ones.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <thread>

#include "base/error.h"
#include "base/process_name.h"
#include "base/sizes.h"
#include "base/units.h"
#include "parallel/world.h"
#include "rpc/agent.h"
#include "rpc/peer_links.h"
#include "rpc/rendezvous/rendezvous.h"

namespace retort::bench {
namespace {

using namespace std::chrono_literals;
constexpr auto kWorkLimit = 10min;
constexpr size_t kWaitAtOnce = 64;  // as recipes/run/rank/role_connections.cc
constexpr const char* kTeachers = "bench/teacher/0/";
constexpr const char* kStudents = "bench/student/0/world/";

rpc::ConnectStore connector(const std::string& name) {
  return rpc::store_connector({.name = name, .run = "bench", .secret = "benchmark"});
}

// Runs `body` for each of [0, count) on a thread of its own; how long each one took.
std::vector<double> on_threads(int64_t count, const std::function<void(int64_t)>& body) {
  std::vector<double> seconds(to_size(count));
  std::vector<std::exception_ptr> errors(to_size(count));
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < count; ++i)
    threads.emplace_back([&, i] {
      const auto start = std::chrono::steady_clock::now();
      try {
        body(i);
      } catch (...) {
        errors[to_size(i)] = std::current_exception();
      }
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      seconds[to_size(i)] = took.count();
    });

  for (std::thread& thread : threads)
    thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  return seconds;
}

class SessionWork final : public RankWork {
 public:
  explicit SessionWork(const WorkerOptions& options) : options_(options) {
    const int64_t students = options.ranks / 2;
    for (int64_t rank = options.first; rank < options.first + options.count; ++rank) {
      const bool teaches = rank >= students;
      Rank each{
          .name = process_name(teaches ? "teacher" : "student", teaches ? rank - students : rank)};
      rpc::RpcOptions rpc;
      rpc.heartbeat_interval = Duration(options.heartbeat_ms);
      each.agent = std::make_unique<rpc::Agent>(
          rpc::Agent::Options{.name = each.name, .secret = "benchmark", .rpc = rpc});
      if (teaches)
        store_of(connector(each.name))
            .set("address/" + std::to_string(rank - students), each.agent->address());
      (teaches ? teachers_ : students_).push_back(std::move(each));
    }
  }

  std::vector<double> run() override {
    return on_threads(std::ssize(students_),
                      [&](int64_t i) { connect_all(students_[to_size(i)]); });
  }

  void close() override {
    // Links first: they would connect again to those that close.
    for (Rank& rank : students_)
      rank.links.reset();
    for (std::vector<Rank>* ranks : {&students_, &teachers_})
      for (Rank& rank : *ranks)
        rank.agent->close();
    for (std::vector<Rank>* ranks : {&students_, &teachers_})
      for (Rank& rank : *ranks)
        rank.agent->join();
  }

 private:
  struct Rank {
    std::string name;
    std::unique_ptr<rpc::Agent> agent;
    std::unique_ptr<rpc::PeerLinks> links;
  };

  parallel::StoreClient store_of(const parallel::ConnectStore& connect) const {
    return {"127.0.0.1", options_.store_port, kTeachers, kWorkLimit, connect};
  }

  void connect_all(Rank& rank) {
    const Deadline deadline = Deadline::after(kWorkLimit);
    const parallel::ConnectStore shared = connector(rank.name);
    const auto find = [this, shared, name = rank.name](const std::string& peer, Deadline until) {
      const int64_t teacher = role_and_rank(peer).second;
      return store_of(options_.one_by_one ? connector(name) : shared)
          .get("address/" + std::to_string(teacher), until);
    };
    rank.links =
        std::make_unique<rpc::PeerLinks>(*rank.agent, rpc::PeerLinks::Options{.find = find});
    options_.one_by_one ? connect_in_turn(rank, find, deadline)
                        : connect_at_once(rank, store_of(shared), deadline);
  }

  // As it would be without one store connection a process and without batches.
  void connect_in_turn(Rank& rank,
                       const std::function<std::string(const std::string&, Deadline)>& find,
                       Deadline deadline) {
    for (int64_t teacher = 0; teacher < options_.ranks / 2; ++teacher) {
      const std::string peer = process_name("teacher", teacher);
      find(peer, deadline);  // a role that has not loaded yet is waited for before it is connected
      rank.links->keep(peer, deadline);
    }
  }

  // As recipes/run/rank/role_connections.cc does it.
  void connect_at_once(Rank& rank, parallel::StoreClient store, Deadline deadline) {
    std::vector<std::string> keys;
    for (int64_t teacher = 0; teacher < options_.ranks / 2; ++teacher)
      keys.push_back("address/" + std::to_string(teacher));
    for (size_t first = 0; first < keys.size(); first += kWaitAtOnce) {
      const size_t last = std::min(first + kWaitAtOnce, keys.size());
      store.wait_all({keys.begin() + static_cast<ptrdiff_t>(first),
                      keys.begin() + static_cast<ptrdiff_t>(last)},
                     deadline);
    }
    const std::vector<std::string> addresses = store.get_all(keys, deadline);

    std::vector<rpc::PeerLinks::Place> places;
    for (int64_t teacher = 0; teacher < options_.ranks / 2; ++teacher)
      places.push_back(
          {.peer = process_name("teacher", teacher), .address = addresses[to_size(teacher)]});
    rank.links->keep_all(std::move(places), deadline);
  }

  const WorkerOptions options_;
  std::vector<Rank> students_, teachers_;
};

class WorldWork final : public RankWork {
 public:
  explicit WorldWork(const WorkerOptions& options)
      : options_(options), worlds_(to_size(options.count)) {}

  std::vector<double> run() override {
    return on_threads(options_.count, [&](int64_t i) {
      const int64_t rank = options_.first + i;
      worlds_[to_size(i)] = std::make_unique<parallel::World>(
          parallel::World::Options{.role = "student",
                                   .layout = {.dp = options_.ranks},
                                   .rank = rank,
                                   .store_port = options_.store_port,
                                   .store_prefix = kStudents,
                                   .timeout = kWorkLimit,
                                   .connect_store = connector(process_name("student", rank))});
      use(*worlds_[to_size(i)]);
    });
  }

  void close() override { worlds_.clear(); }

 private:
  // What a step of training does: gradients over dp, a sum over all, and a vote.
  void use(parallel::World& world) {
    at::Tensor gradients = at::ones({1 << 12});
    world.dp().all_reduce(gradients);
    at::Tensor norm = at::ones({1});
    world.dp_pp().all_reduce(norm);
    world.all().barrier();
    if (*gradients.const_data_ptr<float>() != static_cast<float>(options_.ranks))
      throw Error(ErrorCode::kCorrupt, "the sum over all ranks is wrong");
  }

  const WorkerOptions options_;
  std::vector<std::unique_ptr<parallel::World>> worlds_;
};

}  // namespace

std::unique_ptr<RankWork> make_session_work(const WorkerOptions& options) {
  return std::make_unique<SessionWork>(options);
}

std::unique_ptr<RankWork> make_world_work(const WorkerOptions& options) {
  return std::make_unique<WorldWork>(options);
}

std::unique_ptr<RankWork> make_rank_work(const WorkerOptions& options) {
  if (options.part == "sessions") return make_session_work(options);
  if (options.part == "world") return make_world_work(options);
  throw Error(ErrorCode::kInvalidArgument, "no part '" + options.part + "'; sessions or world");
}

}  // namespace retort::bench

#include "launch/links/link_process.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/process_name.h"
#include "launch/document/recipe_file.h"
#include "launch/links/link_job.h"
#include "launch/links/link_methods.h"
#include "launch/process/child_context.h"
#include "parallel/world.h"
#include "roles/serving_loop.h"
#include "rpc/agent.h"
#include "rpc/listen_address.h"
#include "rpc/rendezvous/rendezvous.h"

namespace retort::launch::links {
namespace {

using Clock = std::chrono::steady_clock;

// How long a process waits for its job, while others have theirs.
constexpr std::chrono::milliseconds kPause{2 * kJobLimit};
constexpr std::chrono::milliseconds kMeasured{500};
constexpr int kWarmUp = 20, kLeastRounds = 100;
constexpr size_t kOnTheirWay = 2;  // messages, as with a student that looks one step ahead
constexpr int kLeastMessages = 4;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

at::Tensor bytes_of(int64_t size) { return at::zeros({size}, at::kByte); }

// The process's agent for one job, on the address and with the options that its ranks would have.
rpc::Agent::Options agent_options(const ChildContext& context, rpc::RpcOptions rpc,
                                  const LinkJob& job) {
  rpc.bind = rpc::listen_address(context.bind, context.store_host, context.store_port);
  rpc.encryption = job.encrypted ? rpc::Encryption::kAlways : rpc::Encryption::kNever;
  rpc.device_maps.clear();
  return {.name = process_name(kLinkRole, context.rank),
          .secret = context.secret,
          .run = context.run,
          .rpc = rpc};
}

// Times a call of 64 bytes again and again.
void measure_round_trips(rpc::Agent& agent, const std::string& server, LinkResult& result) {
  const LinkMessage request{.wanted_bytes = 64, .bytes = bytes_of(64)};
  const auto call = [&] { agent.call(server, kLinkEcho, request).get(Deadline::after(kJobLimit)); };
  for (int i = 0; i < kWarmUp; ++i)
    call();

  std::vector<double> ms;
  const auto start = Clock::now();
  while (ms.size() < kLeastRounds || Clock::now() - start < kMeasured) {
    const auto begun = Clock::now();
    call();
    ms.push_back(seconds_since(begun) * 1e3);
  }
  std::ranges::sort(ms);
  result.p50_ms = ms[ms.size() / 2];
  result.p99_ms = ms[ms.size() * 99 / 100];
}

// Keeps some messages on their way, and counts those that have arrived. The first ones are not
// counted: memory is allocated for them.
void measure_rate(rpc::Agent& agent, const std::string& server, const LinkJob& job,
                  LinkResult& result) {
  const int64_t bytes = job.message_bytes;
  const LinkMessage request{.wanted_bytes = job.to_asker ? bytes : 0,
                            .bytes = job.to_asker ? at::Tensor() : bytes_of(bytes)};
  std::deque<Future<LinkMessage>> replies;
  const auto send = [&] { replies.push_back(agent.call(server, kLinkEcho, request)); };
  const auto take = [&] {
    replies.front().get(Deadline::after(kJobLimit));
    replies.pop_front();
  };
  while (replies.size() < kOnTheirWay)
    send();
  take();
  send();

  const auto start = Clock::now();
  int messages = 0;
  for (; messages < kLeastMessages || Clock::now() - start < kMeasured; ++messages) {
    take();
    send();
  }
  result.bytes_per_second = static_cast<double>(bytes) * messages / seconds_since(start);
  while (!replies.empty())
    take();
}

class LinkProcess {
 public:
  explicit LinkProcess(const ChildContext& context)
      : context_(context),
        rpc_(parse_recipe(
                 context.recipe, "the recipe",
                 {.cuda = true, .check_files = false, .is_launched = false, .env_values = false})
                 .rpc),
        store_(context.store_host, context.store_port, context.run + "/", kLinkConnection,
               rpc::store_connector({.name = process_name(context.role, context.rank),
                                     .run = context.run,
                                     .secret = context.secret,
                                     .encryption = context.encryption})) {}

  int run() {
    for (int64_t number = 0;; ++number) {
      const std::string suffix = "/" + std::to_string(number);
      const auto job =
          rpc::from_bytes<LinkJob>(store_.get("job" + suffix, Deadline::after(kPause)));
      if (job.is_last()) return 0;
      if (job.asker == context_.rank) ask(job, suffix);
      if (job.server == context_.rank) serve(job, suffix);
    }
  }

 private:
  // A failure is the job's result and not the end, because the next job may do.
  void ask(const LinkJob& job, const std::string& suffix) {
    LinkResult result;
    try {
      rpc::Agent agent(agent_options(context_, rpc_, job));
      const std::string server = process_name(kLinkRole, job.server);
      const std::string address = store_.get("address" + suffix, Deadline::after(kJobLimit));
      if (address.empty())
        throw Error(ErrorCode::kUnavailable, "the other end could not listen; its log says why");
      agent.connect(server, address, Deadline::after(kLinkConnection));
      measure_round_trips(agent, server, result);
      measure_rate(agent, server, job, result);
    } catch (const Error& error) {
      result.error = error.what();
    }
    store_.set("result" + suffix, rpc::to_bytes(result));
  }

  void serve(const LinkJob& job, const std::string& suffix) {
    try {
      const at::Tensor answer = bytes_of(job.message_bytes);
      const auto queue = std::make_shared<rpc::HandlerQueue>(roles::kMaxJobs);
      rpc::Agent agent(agent_options(context_, rpc_, job));
      agent.serve(kLinkEcho, queue, [&](const LinkMessage& message, const rpc::CallContext&) {
        const int64_t wanted = std::clamp<int64_t>(message.wanted_bytes, 0, job.message_bytes);
        return LinkMessage{.bytes = wanted == 0 ? at::Tensor() : answer.slice(0, 0, wanted)};
      });
      store_.set("address" + suffix, agent.address());
      serve_until_result(*queue, suffix);
    } catch (const Error& error) {
      RETORT_LOG(kError) << error.what();
      // The asker waits for an address; an empty one tells it that there is none.
      if (!store_.contains("address" + suffix)) store_.set("address" + suffix, "");
    }
    store_.set("closed" + suffix, "1");
  }

  // Handlers run here; another thread waits for the asker.
  void serve_until_result(rpc::HandlerQueue& queue, const std::string& suffix) {
    std::atomic<bool> done{false};
    const std::jthread waits([&] {
      try {
        store_.wait_all({"result" + suffix}, Deadline::after(kJobLimit));
      } catch (const Error& error) {
        RETORT_LOG(kError) << error.what();
      }
      done = true;
    });
    roles::run_serving_loop(queue, [&] { return done.load(); });
  }

  const ChildContext& context_;
  const rpc::RpcOptions rpc_;
  parallel::StoreClient store_;
};

}  // namespace

int run_link_process() {
  const ChildContext context = read_child_context();
  set_log_identity(process_name(context.role, context.rank));
  return LinkProcess(context).run();
}

}  // namespace retort::launch::links

// Latency and throughput of rpc::Agent beside TensorPipe alone (its own transport, uv), in the same
// run, between the same two processes.
//   rpc_bench [plain|tls] [seconds per row]
//
// A row is a round trip: a request that carries a tensor of that size (small: no tensor at all),
// and an empty reply. Beside it stands the same over one bare pipe: descriptor, allocation, read,
// an 8-byte answer, everything in TensorPipe's own callbacks. The ratio says what names, deadlines,
// typed errors, flow control and the hand-over between two threads cost.
#include <ATen/ops/ones.h>
#include <signal.h>
#include <sys/prctl.h>
#include <tensorpipe/tensorpipe.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <future>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "rpc/agent.h"
#include "tests/support/process.h"

namespace retort {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
constexpr auto kWait = 60s;

struct Push {
  at::Tensor tensor;
  template <class A>
  void serialize(A& archive, uint32_t) {
    archive(tensor);
  }
};
inline constexpr rpc::Method<Push, Empty> kPush{"bench.push", true};

rpc::Agent::Options options(const std::string& name, const std::string& stream) {
  rpc::RpcOptions rpc;
  rpc.encryption = stream == "tls" ? rpc::Encryption::kAlways : rpc::Encryption::kNever;
  return {.name = name, .secret = "benchmark", .rpc = rpc};
}

// The side of the bare pipe that receives. All messages go into one buffer, as large as the
// largest.
class BareEcho {
 public:
  BareEcho() : buffer_(at::ones({64 << 20}, at::kByte)) {
    setup(context_);
    listener_ = context_.listen({"uv://127.0.0.1:0"});
    listener_->accept(
        [this](const tensorpipe::Error& error, std::shared_ptr<tensorpipe::Pipe> pipe) noexcept {
          if (error) return;
          pipe_ = std::move(pipe);
          receive();
        });
  }
  std::string url() const { return listener_->url("uv"); }

  static void setup(tensorpipe::Context& context) {
    context.registerTransport(1, "uv", tensorpipe::transport::uv::create());
    context.registerChannel(2, "cma", tensorpipe::channel::cma::create());
    context.registerChannel(1, "basic", tensorpipe::channel::basic::create());
  }

 private:
  void receive() {
    pipe_->readDescriptor(
        [this](const tensorpipe::Error& error, tensorpipe::Descriptor descriptor) noexcept {
          if (error) return;
          tensorpipe::Allocation allocation;
          allocation.payloads.resize(1);
          allocation.payloads[0].data = payload_;
          if (!descriptor.tensors.empty())
            allocation.tensors.push_back({tensorpipe::CpuBuffer{buffer_.mutable_data_ptr()}});
          pipe_->read(std::move(allocation), [this](const tensorpipe::Error& failed) noexcept {
            if (failed) return;
            tensorpipe::Message answer;
            answer.payloads.push_back({payload_, 8, ""});
            pipe_->write(std::move(answer), [](const tensorpipe::Error&) noexcept {});
            receive();
          });
        });
  }

  at::Tensor buffer_;
  char payload_[64] = {};
  tensorpipe::Context context_;
  std::shared_ptr<tensorpipe::Listener> listener_;
  std::shared_ptr<tensorpipe::Pipe> pipe_;
};

int serve(const std::string& stream) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto queue = std::make_shared<rpc::HandlerQueue>(256);
  rpc::Agent agent(options("server/0", stream));
  agent.serve(kPush, queue, [](const Push&, const rpc::CallContext&) { return Empty{}; });
  BareEcho bare;
  std::cout << agent.address() << std::endl << bare.url() << std::endl;
  std::thread stopper([&] {
    std::string line;
    std::getline(std::cin, line);
    queue->close();
  });
  while (!queue->closed())
    if (auto job = queue->pop(Deadline::after(1s))) (*job)();
  stopper.join();
  return 0;
}

// The side of the bare pipe that asks.
class BarePing {
 public:
  explicit BarePing(const std::string& url) {
    BareEcho::setup(context_);
    pipe_ = context_.connect(url);
  }
  void round_trip(const at::Tensor& tensor) {
    tensorpipe::Message message;
    message.payloads.push_back({payload_, sizeof payload_, ""});
    if (tensor.defined()) {
      tensorpipe::Message::Tensor entry;
      entry.buffer = tensorpipe::CpuBuffer{tensor.mutable_data_ptr()};
      entry.length = tensor.nbytes();
      message.tensors.push_back(std::move(entry));
    }

    std::promise<void> done;
    pipe_->write(std::move(message), [](const tensorpipe::Error&) noexcept {});
    pipe_->readDescriptor([&](const tensorpipe::Error& error, tensorpipe::Descriptor) noexcept {
      if (error) std::abort();
      tensorpipe::Allocation allocation;
      allocation.payloads.push_back({payload_});
      pipe_->read(std::move(allocation),
                  [&](const tensorpipe::Error&) noexcept { done.set_value(); });
    });
    if (done.get_future().wait_for(kWait) != std::future_status::ready) std::abort();
  }

 private:
  char payload_[64] = {};
  tensorpipe::Context context_;
  std::shared_ptr<tensorpipe::Pipe> pipe_;
};

struct Figures {
  std::vector<double> agent_us, bare_us;
  static double quantile(std::vector<double>& values, double q) {
    std::sort(values.begin(), values.end());
    const double place = q * static_cast<double>(values.size() - 1);
    return values[static_cast<size_t>(place)];
  }
};

template <class Fn>
double microseconds(Fn fn) {
  const auto start = Clock::now();
  fn();
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// Alternates the two, so that both see the same machine.
Figures measure(rpc::Agent& agent, BarePing& bare, const at::Tensor& tensor, double seconds) {
  Figures figures;
  const auto call = [&] { agent.call("server/0", kPush, {tensor}).get(Deadline::after(kWait)); };
  for (int i = 0; i < 5; ++i) {
    call();
    bare.round_trip(tensor);
  }

  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (Clock::now() < end || figures.agent_us.size() < 10) {
    figures.agent_us.push_back(microseconds(call));
    figures.bare_us.push_back(microseconds([&] { bare.round_trip(tensor); }));
  }
  return figures;
}

// Prints the row of one size.
void print_row(rpc::Agent& agent, BarePing& bare, int64_t bytes, double seconds) {
  const at::Tensor tensor = bytes ? at::ones({bytes}, at::kByte) : at::Tensor();
  auto figures = measure(agent, bare, tensor, seconds);
  const double ours = Figures::quantile(figures.agent_us, 0.5);
  const double theirs = Figures::quantile(figures.bare_us, 0.5);
  std::printf("%-10s %14.1f %14.1f %8.2f",
              bytes ? (std::to_string(bytes >> 20) + " MiB").c_str() : "small", ours, theirs,
              ours / theirs);
  const double gib = static_cast<double>(bytes) / (1 << 30) * 1e6;
  if (bytes) std::printf(" %14.2f %14.2f %8.2f", gib / ours, gib / theirs, theirs / ours);
  std::printf("\n");
}

int run(const std::string& stream, double seconds) {
  using test::ChildProcess;
  ChildProcess server = ChildProcess::spawn(
      {.role = {}, .args = {"--serve", stream}, .env = {}, .program = "/proc/self/exe"});
  const std::string address = server.read_line(Deadline::after(kWait));
  const std::string url = server.read_line(Deadline::after(kWait));

  {
    rpc::Agent agent(options("client/0", stream));
    agent.connect("server/0", address, Deadline::after(kWait));
    BarePing bare(url);
    std::printf(
        "agent %s, bare TensorPipe uv, channels cma, basic; two processes; "
        "ratio = agent / bare\n",
        stream.c_str());
    std::printf("%-10s %14s %14s %8s %14s %14s %8s\n", "size", "agent p50 us", "bare p50 us",
                "ratio", "agent GiB/s", "bare GiB/s", "ratio");
    for (const int64_t bytes : {int64_t{0}, int64_t{1} << 20, int64_t{16} << 20, int64_t{64} << 20})
      print_row(agent, bare, bytes, seconds);
  }

  // This side closes before the server is told to end.
  server.close_stdin();
  return server.wait(Deadline::after(kWait));
}

}  // namespace
}  // namespace retort

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);  // the bare side has no protection of its own
  const std::string first = argc > 1 ? argv[1] : "plain";
  if (first == "--serve") return retort::serve(argc > 2 ? argv[2] : "plain");
  if (first != "plain" && first != "tls") {
    std::fprintf(stderr, "usage: rpc_bench [plain|tls] [seconds per row]\n");
    return 2;
  }
  try {
    return retort::run(first, argc > 2 ? std::atof(argv[2]) : 3.0);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rpc_bench: %s\n", e.what());
    return 1;
  }
}

// TLS between four pairs at once, on the loop thread alone and with threads for large transfers
// (rpc/transport/tls_threads.h), in turns.
//
//   tls_bench [rounds, default 9] [seconds a turn, default 1]
//
// One process stands for five: a hub, which sends to two peers and receives from two as fast as it
// can, and its peers, each with a loop and threads of its own. A heartbeat of 8 bytes goes both
// ways between hub and each peer every 5 ms, over a connection of its own, and is late from when it
// was due until it is read. A small call is 64 bytes there and back, one at a time, with nothing
// beside.
// Columns: what crosses all pairs; seconds that cores worked for a GiB, which is sealed once and
//   opened once; heartbeats; the median of small calls. Medians of the rounds, and of the rounds'
//   ratios; heartbeats of all rounds together.
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "rpc/loop/loop.h"
#include "rpc/transport/socket_options.h"
#include "rpc/transport/stream_factory.h"
#include "rpc/transport/tls_context.h"

namespace retort::bench {
namespace {

using namespace std::chrono_literals;
using namespace rpc::transport;
using Clock = std::chrono::steady_clock;
using boost::system::error_code;
using tcp = boost::asio::ip::tcp;

constexpr size_t kPairs = 4;
constexpr size_t kTransferBytes = 4 << 20;  // as the data connections have them
constexpr auto kBeat = 5ms;

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values.at(static_cast<size_t>(q * static_cast<double>(values.size() - 1)));
}
double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

// What stands for a process: its network thread, and its threads for TLS if it has any.
struct Process {
  explicit Process(bool with_threads)
      : streams(
            std::make_shared<TlsContext>(std::vector<Credential>{{"run", "benchmark"}},
                                         with_threads ? std::make_shared<TlsThreads>() : nullptr)) {
    loop.start();
  }
  template <class Task>
  void on_loop(const Task& task) {
    std::promise<void> done;
    RETORT_CHECK(loop.post([&] {
      task();
      done.set_value();
    }));
    done.get_future().get();
  }

  rpc::detail::Loop loop;
  const StreamFactory streams;
};

struct Ends {
  std::shared_ptr<Stream> hub, peer;
};

Ends connect(Process& hub, Process& peer) {
  tcp::acceptor acceptor(hub.loop.io(), {boost::asio::ip::address_v4::loopback(), 0});
  tcp::socket client(peer.loop.io());
  client.connect(acceptor.local_endpoint());
  tcp::socket server = acceptor.accept();
  apply(SocketOptions{}, client);
  apply(SocketOptions{}, server);
  const Ends ends{.hub = hub.streams.accepted(std::move(server)),
                  .peer = peer.streams.connected(std::move(client))};

  std::promise<error_code> at_hub, at_peer;
  hub.on_loop([&] { ends.hub->start([&](const error_code& code) { at_hub.set_value(code); }); });
  peer.on_loop([&] { ends.peer->start([&](const error_code& code) { at_peer.set_value(code); }); });
  RETORT_CHECK(!at_hub.get_future().get() && !at_peer.get_future().get()) << "no handshake";
  return ends;
}

// Writes one transfer after the other until its stream is closed.
struct Writer : std::enable_shared_from_this<Writer> {
  explicit Writer(std::shared_ptr<Stream> to) : stream(std::move(to)) {}
  void go() {
    if (piece.size() == 0) piece = boost::asio::buffer(memory);
    stream->write_some({&piece, 1}, [self = shared_from_this()](const error_code& code, size_t n) {
      if (code) return;
      self->piece += n;
      self->go();
    });
  }
  const std::shared_ptr<Stream> stream;
  std::vector<char> memory = std::vector<char>(kTransferBytes, 'x');
  boost::asio::const_buffer piece;
};

struct Reader : std::enable_shared_from_this<Reader> {
  Reader(std::shared_ptr<Stream> from, std::atomic<uint64_t>& bytes)
      : stream(std::move(from)), total(bytes) {}
  void go() {
    if (room.size() == 0) room = boost::asio::buffer(memory);
    stream->read_some({&room, 1}, [self = shared_from_this()](const error_code& code, size_t n) {
      if (code) return;
      self->total += n;
      self->room += n;
      self->go();
    });
  }
  const std::shared_ptr<Stream> stream;
  std::atomic<uint64_t>& total;
  std::vector<char> memory = std::vector<char>(kTransferBytes);
  boost::asio::mutable_buffer room;
};

// One direction of a control connection: sends when a heartbeat is due, notes how late each is.
struct Beats : std::enable_shared_from_this<Beats> {
  Beats(Process& from, std::shared_ptr<Stream> sender, std::shared_ptr<Stream> receiver)
      : from(std::move(sender)), to(std::move(receiver)), timer(from.loop.io()) {}
  void send(Clock::time_point when) {
    due = when.time_since_epoch().count();
    timer.expires_at(when);
    timer.async_wait([self = shared_from_this(), when](const error_code& code) {
      if (code) return;
      write_all(self->from, boost::asio::buffer(&self->due, sizeof self->due),
                [self, when](const error_code& broken) {
                  if (!broken) self->send(std::max(when + kBeat, Clock::now()));
                });
    });
  }
  void receive() {
    read_all(to, boost::asio::buffer(&heard, sizeof heard),
             [self = shared_from_this()](const error_code& code) {
               if (code) return;
               const auto late = Clock::now().time_since_epoch() - Clock::duration(self->heard);
               self->late_ms.push_back(std::chrono::duration<double, std::milli>(late).count());
               self->receive();
             });
  }
  const std::shared_ptr<Stream> from, to;
  boost::asio::steady_timer timer;
  Clock::rep due = 0, heard = 0;
  std::vector<double> late_ms;  // of the receiver's loop
};

// 64 bytes there and back, as often as the time allows. Returns the microseconds of each.
struct Calls : std::enable_shared_from_this<Calls> {
  explicit Calls(Ends both, double seconds)
      : ends(std::move(both)),
        until(Clock::now() +
              std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) {
  }
  void ask() {
    begun = Clock::now();
    if (begun > until) return done.set_value();
    write_all(ends.hub, boost::asio::buffer(question), [](const error_code&) {});
    read_all(ends.hub, boost::asio::buffer(answer),
             [self = shared_from_this()](const error_code& code) {
               RETORT_CHECK(!code) << code.message();
               const std::chrono::duration<double, std::micro> took = Clock::now() - self->begun;
               self->us.push_back(took.count());
               self->ask();
             });
  }
  void serve() {
    read_all(ends.peer, boost::asio::buffer(asked),
             [self = shared_from_this()](const error_code& code) {
               if (code) return;
               write_all(self->ends.peer, boost::asio::buffer(self->reply),
                         [self](const error_code& broken) {
                           if (!broken) self->serve();
                         });
             });
  }
  const Ends ends;
  const Clock::time_point until;
  Clock::time_point begun;
  std::array<char, 64> question{}, answer{}, asked{}, reply{};
  std::vector<double> us;
  std::promise<void> done;
};

struct Turn {
  double gib_per_second = 0, cpu_seconds_a_gib = 0, call_us = 0;
  std::vector<double> late_ms;
};

void close_all(Process& hub, Process& peer, const Ends& ends) {
  hub.on_loop([&] { ends.hub->close(); });
  peer.on_loop([&] { ends.peer->close(); });
}

void measure_calls(Process& hub, Process& peer, double seconds, Turn& turn) {
  const Ends ends = connect(hub, peer);
  const auto calls = std::make_shared<Calls>(ends, seconds);
  peer.on_loop([&] { calls->serve(); });
  hub.on_loop([&] { calls->ask(); });
  calls->done.get_future().get();
  turn.call_us = median(calls->us);
  close_all(hub, peer, ends);
}

void measure_streams(Process& hub, std::vector<std::unique_ptr<Process>>& peers, double seconds,
                     Turn& turn) {
  std::atomic<uint64_t> total{0};
  std::vector<std::pair<Process*, Ends>> connections;
  std::vector<std::shared_ptr<Beats>> beats;
  for (size_t i = 0; i < peers.size(); ++i) {
    Process& peer = *peers[i];
    const Ends data = connect(hub, peer), control = connect(hub, peer);
    connections.push_back({&peer, data});
    connections.push_back({&peer, control});
    const auto there = std::make_shared<Beats>(hub, control.hub, control.peer);
    const auto back = std::make_shared<Beats>(peer, control.peer, control.hub);
    beats.push_back(there);
    beats.push_back(back);

    const bool sends = i % 2 == 0;
    const auto writer = std::make_shared<Writer>(sends ? data.hub : data.peer);
    const auto reader = std::make_shared<Reader>(sends ? data.peer : data.hub, total);
    const auto first = Clock::now() + kBeat * (i + 1) / kPairs;
    hub.on_loop([&] {
      there->send(first);
      back->receive();
      sends ? writer->go() : reader->go();
    });
    peer.on_loop([&] {
      back->send(first);
      there->receive();
      sends ? reader->go() : writer->go();
    });
  }

  // The first moments are those of growing socket buffers.
  std::this_thread::sleep_for(200ms);
  const auto start = Clock::now();
  const double cpu = cpu_seconds();
  const uint64_t before = total;
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  const double gib = static_cast<double>(total - before) / (1 << 30);
  turn.cpu_seconds_a_gib = (cpu_seconds() - cpu) / gib;
  turn.gib_per_second = gib / std::chrono::duration<double>(Clock::now() - start).count();

  for (const auto& [peer, ends] : connections)
    close_all(hub, *peer, ends);
  hub.loop.stop();
  for (const auto& peer : peers)
    peer->loop.stop();
  for (const auto& each : beats)
    turn.late_ms.insert(turn.late_ms.end(), each->late_ms.begin(), each->late_ms.end());
}

Turn take_turn(bool with_threads, double seconds) {
  Process hub(with_threads);
  std::vector<std::unique_ptr<Process>> peers;
  for (size_t i = 0; i < kPairs; ++i)
    peers.push_back(std::make_unique<Process>(with_threads));
  Turn turn;
  measure_calls(hub, *peers.front(), seconds / 2, turn);
  measure_streams(hub, peers, seconds, turn);
  return turn;
}

void print(const char* name, const std::vector<Turn>& turns) {
  std::vector<double> rates, cpu, calls, late;
  for (const Turn& turn : turns) {
    rates.push_back(turn.gib_per_second);
    cpu.push_back(turn.cpu_seconds_a_gib);
    calls.push_back(turn.call_us);
    late.insert(late.end(), turn.late_ms.begin(), turn.late_ms.end());
  }
  std::printf("| %-12s | %5.2f | %10.3f | %8.2f | %8.2f | %8.2f | %13.1f |\n", name, median(rates),
              median(cpu), quantile(late, 0.5), quantile(late, 0.99), quantile(late, 1),
              median(calls));
}

void run(int rounds, double seconds) {
  std::vector<Turn> on_loop, with_threads;
  for (int round = 0; round < rounds; ++round) {
    // Who goes first changes, so that the order is nobody's advantage.
    const bool threads_first = round % 2 == 1;
    if (threads_first) with_threads.push_back(take_turn(true, seconds));
    on_loop.push_back(take_turn(false, seconds));
    if (!threads_first) with_threads.push_back(take_turn(true, seconds));
  }
  std::printf("%d rounds, %zu threads, %u cores\n", rounds, TlsThreadsOptions{}.num_threads,
              std::thread::hardware_concurrency());
  std::printf(
      "| TLS          | GiB/s | core s/GiB | beat p50 | p99 ms   | max ms   | small call us |\n");
  print("on the loop", on_loop);
  print("threads", with_threads);

  std::vector<double> rates, cpu, calls;
  for (size_t i = 0; i < on_loop.size(); ++i) {
    rates.push_back(with_threads[i].gib_per_second / on_loop[i].gib_per_second);
    cpu.push_back(with_threads[i].cpu_seconds_a_gib / on_loop[i].cpu_seconds_a_gib);
    calls.push_back(with_threads[i].call_us / on_loop[i].call_us);
  }
  std::printf(
      "threads : loop, medians of the rounds' ratios: rate %.2f, small call %.3f, core s/GiB %.3f "
      "(quartiles %.3f, %.3f)\n",
      median(rates), median(calls), median(cpu), quantile(cpu, 0.25), quantile(cpu, 0.75));
}

}  // namespace
}  // namespace retort::bench

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 9;
  const double seconds = argc > 2 ? std::atof(argv[2]) : 1;
  if (rounds < 1 || seconds <= 0) {
    std::fprintf(stderr, "usage: tls_bench [rounds, from 1] [seconds a turn]\n");
    return 2;
  }
  try {
    retort::bench::run(rounds, seconds);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "tls_bench: %s\n", e.what());
    return 1;
  }
}

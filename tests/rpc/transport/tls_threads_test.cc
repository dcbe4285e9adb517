// Which thread seals and opens: large transfers of several streams on several threads at once, all
// else on the loop. OpenSSL calls this test for every record that it is about to seal or to open,
// and the test holds it there: nothing depends on how fast anything is.
#include "rpc/transport/tls_threads.h"

#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/future.h"
#include "rpc/loop/loop.h"
#include "rpc/transport/stream_factory.h"
#include "rpc/transport/tls_context.h"
#include "tests/rpc/transport/log_capture.h"
#include "tests/rpc/transport/node.h"
#include "tests/support/wait_until.h"

namespace retort::rpc::transport::testing {
namespace {

using boost::system::error_code;
using tcp = boost::asio::ip::tcp;

constexpr size_t kLarge = 1 << 20;

// Where a thread that is about to seal (or to open) a record stays: until open() was called, or
// `expected` threads are here. The loop's thread passes.
class Gate {
 public:
  void hold(bool sealed, size_t expected) {
    std::lock_guard lock(mutex_);
    holds_ = true;
    sealed_ = sealed;
    expected_ = expected;
  }
  void open() {
    std::lock_guard lock(mutex_);
    holds_ = false;
    changed_.notify_all();
  }
  // Waits until so many threads have been here at once.
  bool held(size_t threads) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, soon().time(), [&] { return most_ >= threads; });
  }
  // Whether records have passed on another thread than the loop's.
  bool seen_elsewhere() {
    std::lock_guard lock(mutex_);
    return seen_elsewhere_;
  }

  // Whether OpenSSL's object of a thread that was held here was used by another one meanwhile.
  bool shared() {
    std::lock_guard lock(mutex_);
    return shared_;
  }

  static void on_record(int sealed, int, int type, const void*, size_t, SSL* ssl, void* gate) {
    if (type == SSL3_RT_HEADER) static_cast<Gate*>(gate)->pass(sealed == 1, ssl);
  }

 private:
  void pass(bool sealed, SSL* ssl) {
    std::unique_lock lock(mutex_);
    if (held_.contains(ssl)) shared_ = true;
    if (future_detail::on_loop_thread()) return;
    seen_elsewhere_ = true;
    if (!holds_ || sealed != sealed_) return;

    held_.insert(ssl);
    most_ = std::max(most_, held_.size());
    if (held_.size() == expected_) holds_ = false;
    changed_.notify_all();
    // Where the threads never meet the test has failed, and is to end.
    changed_.wait_until(lock, soon().time(), [&] { return !holds_; });
    held_.erase(ssl);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool holds_ = false, sealed_ = false, seen_elsewhere_ = false, shared_ = false;
  size_t expected_ = 0, most_ = 0;
  std::set<SSL*> held_;
};

ptrdiff_t num_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

struct Pair {
  std::shared_ptr<Stream> ours, theirs;
};

class TlsThreadsTest : public ::testing::Test {
 protected:
  TlsThreadsTest() { loop_.start(); }
  ~TlsThreadsTest() override {
    gate_.open();
    stop();
    EXPECT_FALSE(gate_.shared()) << "two threads used one object of OpenSSL's";
  }

  void stop() {
    if (std::exchange(stopped_, true)) return;
    loop_.post([this] {
      for (const Pair& pair : pairs_) {
        pair.ours->close();
        pair.theirs->close();
      }
    });
    loop_.stop();
  }

  template <class Task>
  void on_loop(const Task& task) {
    std::promise<void> done;
    ASSERT_TRUE(loop_.post([&] {
      task();
      done.set_value();
    }));
    done.get_future().get();
  }

  // A connected pair, ready. All of `ours` share the threads, whose number the first one says;
  // `theirs` have none.
  Pair connect(size_t num_threads) {
    if (!context_) {
      const TlsThreadsOptions options{
          .num_threads = num_threads,
          .start_thread = [this](std::function<void()> run) { return thread(std::move(run)); }};
      context_ = std::make_shared<TlsContext>(credentials_, std::make_shared<TlsThreads>(options));
      SSL_CTX_set_msg_callback(context_->native(), Gate::on_record);
      SSL_CTX_set_msg_callback_arg(context_->native(), &gate_);
    }

    tcp::acceptor acceptor(loop_.io(), {boost::asio::ip::address_v4::loopback(), 0});
    tcp::socket client(loop_.io());
    client.connect(acceptor.local_endpoint());
    Pair pair{.ours = StreamFactory(context_).accepted(acceptor.accept()),
              .theirs = StreamFactory(their_context_).connected(std::move(client))};
    auto one = result(), other = result();
    on_loop([&] {
      pair.ours->start([one](const error_code& code) { one->set_value(code); });
      pair.theirs->start([other](const error_code& code) { other->set_value(code); });
    });
    EXPECT_FALSE(await(one));
    EXPECT_FALSE(await(other));
    pairs_.push_back(pair);
    return pair;
  }

  std::thread thread(std::function<void()> run) {
    if (room_ == 0) throw std::system_error(EAGAIN, std::generic_category());
    --room_;
    return std::thread(std::move(run));
  }

  using Result = std::shared_ptr<std::promise<error_code>>;
  static Result result() { return std::make_shared<std::promise<error_code>>(); }
  static error_code await(const Result& result) {
    auto future = result->get_future();
    if (future.wait_until(soon().time()) == std::future_status::ready) return future.get();
    ADD_FAILURE() << "no outcome";
    return boost::asio::error::timed_out;
  }
  // The bytes live until the result is there.
  Result send(const std::shared_ptr<Stream>& stream, const std::string& bytes) {
    const Result sent = result();
    on_loop([&] {
      write_all(stream, boost::asio::buffer(bytes),
                [sent](const error_code& code) { sent->set_value(code); });
    });
    return sent;
  }
  Result receive(const std::shared_ptr<Stream>& stream, std::string& bytes) {
    const Result received = result();
    on_loop([&] {
      read_all(stream, boost::asio::buffer(bytes),
               [received](const error_code& code) { received->set_value(code); });
    });
    return received;
  }

  static std::string content(size_t bytes, char first) {
    std::string content(bytes, first);
    for (size_t i = 0; i < bytes; ++i)
      content[i] = static_cast<char>(first + static_cast<char>(i * 31 % 251));
    return content;
  }

  Gate gate_;
  const std::vector<Credential> credentials_{{"first", "the secret of these tests"}};
  const std::shared_ptr<TlsContext> their_context_ = std::make_shared<TlsContext>(credentials_);
  std::shared_ptr<TlsContext> context_;
  rpc::detail::Loop loop_;
  std::vector<Pair> pairs_;
  bool stopped_ = false;
  size_t room_ = 100;  // for how many threads the system has room
};

TEST_F(TlsThreadsTest, TwoStreamsAreSealedAtOnce) {
  const Pair first = connect(2), second = connect(2);
  const std::string sent = content(kLarge, 'a');
  std::string one(kLarge, 0), other(kLarge, 0);
  gate_.hold(true, 2);
  const auto first_sent = send(first.ours, sent), second_sent = send(second.ours, sent);
  EXPECT_TRUE(gate_.held(2)) << "one was sealed after the other";

  const auto first_here = receive(first.theirs, one), second_here = receive(second.theirs, other);
  for (const auto& each : {first_sent, second_sent, first_here, second_here})
    EXPECT_FALSE(await(each));
  EXPECT_TRUE(one == sent && other == sent);
}

TEST_F(TlsThreadsTest, TwoStreamsAreOpenedAtOnce) {
  const Pair first = connect(2), second = connect(2);
  const std::string sent = content(kLarge, 'a');
  std::string one(kLarge, 0), other(kLarge, 0);
  const auto first_sent = send(first.theirs, sent), second_sent = send(second.theirs, sent);
  gate_.hold(false, 2);
  const auto first_here = receive(first.ours, one), second_here = receive(second.ours, other);
  EXPECT_TRUE(gate_.held(2)) << "one was opened after the other";

  for (const auto& each : {first_sent, second_sent, first_here, second_here})
    EXPECT_FALSE(await(each));
  EXPECT_TRUE(one == sent && other == sent);
}

TEST_F(TlsThreadsTest, HandshakesAndSmallTransfersStayOnTheLoop) {
  const Pair pair = connect(2);
  const std::string sent = content(32 << 10, 'a');
  std::string here(sent.size(), 0), there(sent.size(), 0);
  for (const auto& each : {send(pair.ours, sent), receive(pair.theirs, there),
                           send(pair.theirs, sent), receive(pair.ours, here)})
    EXPECT_FALSE(await(each));
  EXPECT_TRUE(here == sent && there == sent);
  EXPECT_FALSE(gate_.seen_elsewhere());
}

// A heartbeat, and the greeting of whoever connects meanwhile.
TEST_F(TlsThreadsTest, SmallTransfersPassWhileEveryThreadIsBusy) {
  const Pair busy = connect(1);
  const std::string large = content(kLarge, 'a'), beat = "beat";
  std::string arrived(kLarge, 0), heard(4, 0), answered(4, 0);
  gate_.hold(true, 2);  // the second never comes
  const auto sent = send(busy.ours, large);
  ASSERT_TRUE(gate_.held(1));

  const Pair quiet = connect(1);
  for (const auto& each : {send(quiet.ours, beat), receive(quiet.theirs, heard),
                           send(quiet.theirs, beat), receive(quiet.ours, answered)})
    EXPECT_FALSE(await(each));
  EXPECT_TRUE(heard == beat && answered == beat);

  gate_.open();
  const auto here = receive(busy.theirs, arrived);
  EXPECT_FALSE(await(sent));
  EXPECT_FALSE(await(here));
  EXPECT_TRUE(arrived == large);
}

TEST_F(TlsThreadsTest, ATransferTheOtherWayWaits) {
  const Pair pair = connect(1);
  const std::string large = content(kLarge, 'a'), small = "answer";
  std::string arrived(kLarge, 0), answer(small.size(), 0);
  gate_.hold(true, 2);
  const auto sent = send(pair.ours, large);
  ASSERT_TRUE(gate_.held(1));

  EXPECT_FALSE(await(send(pair.theirs, small)));
  const auto answered = receive(pair.ours, answer);
  gate_.open();
  const auto here = receive(pair.theirs, arrived);
  for (const auto& each : {answered, sent, here})
    EXPECT_FALSE(await(each));
  EXPECT_TRUE(arrived == large && answer == small);
}

// Nobody touches the caller's memory after the handler, nor the descriptor while a thread uses it.
TEST_F(TlsThreadsTest, ACloseEndsBothTransfersWhenTheThreadIsBack) {
  const Pair pair = connect(1);
  const std::string large = content(kLarge, 'a');
  std::string never(4, 0);
  gate_.hold(true, 2);
  const auto sent = send(pair.ours, large);
  ASSERT_TRUE(gate_.held(1));

  const auto received = receive(pair.ours, never);
  const auto before = num_descriptors();
  on_loop([&] { pair.ours->close(); });
  EXPECT_EQ(num_descriptors(), before) << "the number could be another connection's already";
  gate_.open();
  EXPECT_EQ(await(sent), boost::asio::error::operation_aborted);
  EXPECT_EQ(await(received), boost::asio::error::operation_aborted);
  std::string rest(kLarge + 1, 0);
  EXPECT_TRUE(await(receive(pair.theirs, rest))) << "the other end sees the end";
}

TEST_F(TlsThreadsTest, ALoopThatEndsWaitsForItsTransfers) {
  const Pair pair = connect(1);
  const std::string large = content(kLarge, 'a');
  gate_.hold(true, 2);
  const auto sent = send(pair.ours, large);
  ASSERT_TRUE(gate_.held(1));

  std::thread stopper([&] { stop(); });
  EXPECT_TRUE(test::wait_until([&] { return !loop_.post([] {}); }));
  // A loop that has nothing else to do ends after the first of these.
  for (int i = 0; i < 100; ++i) {
    const Result lives = result();
    boost::asio::post(loop_.io(), [lives] { lives->set_value({}); });
    if (await(lives)) break;
  }
  gate_.open();
  stopper.join();
  EXPECT_EQ(sent->get_future().wait_for(0s), std::future_status::ready);
}

TEST_F(TlsThreadsTest, ASystemWithoutRoomForAllLeavesTheOthers) {
  room_ = 1;
  const Pair first = connect(4), second = connect(4);
  const std::string sent = content(kLarge, 'a');
  std::string one(kLarge, 0), other(kLarge, 0);
  for (const auto& each : {send(first.ours, sent), send(second.ours, sent),
                           receive(first.theirs, one), receive(second.theirs, other)})
    EXPECT_FALSE(await(each));
  EXPECT_TRUE(one == sent && other == sent);
  EXPECT_TRUE(gate_.seen_elsewhere());
}

TEST_F(TlsThreadsTest, ASystemWithoutRoomForAnyLeavesTheLoop) {
  room_ = 0;
  const LogCapture log;
  const Pair pair = connect(2);
  const std::string there = content(3 * kLarge, 'a'), back = content(3 * kLarge, 'k');
  std::string here(back.size(), 0), arrived(there.size(), 0);
  for (const auto& each : {send(pair.ours, there), send(pair.theirs, back),
                           receive(pair.ours, here), receive(pair.theirs, arrived)})
    EXPECT_FALSE(await(each));
  EXPECT_TRUE(here == back && arrived == there);
  EXPECT_FALSE(gate_.seen_elsewhere());

  // Once: a later transfer does not try again.
  const std::string text = log.text(), words = "TLS has 0 of 2 threads";
  EXPECT_NE(text.find(words), std::string::npos) << text;
  EXPECT_EQ(text.find(words), text.rfind(words)) << text;
}

// Sizes at both sides of what is small, both ways at once.
TEST_F(TlsThreadsTest, EveryByteArrivesBothWaysAtOnce) {
  const Pair pair = connect(2);
  for (const size_t bytes : {size_t{1}, size_t{16} << 10, size_t{32} << 10, (size_t{32} << 10) + 1,
                             kLarge - 1, kLarge, 5 * kLarge + 7}) {
    const std::string there = content(bytes, 'a'), back = content(bytes, 'k');
    std::string here(bytes, 0), arrived(bytes, 0);
    const auto first = send(pair.ours, there), second = send(pair.theirs, back);
    const auto third = receive(pair.ours, here), fourth = receive(pair.theirs, arrived);
    for (const auto& each : {first, second, third, fourth})
      EXPECT_FALSE(await(each));
    EXPECT_TRUE(here == back && arrived == there) << bytes;
  }
}

}  // namespace
}  // namespace retort::rpc::transport::testing

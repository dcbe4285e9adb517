// The pieces of the protocol that need no network: frames, proofs, envelopes, errors, descriptors,
// credits, options.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <tensorpipe/tensorpipe.h>

#include <future>
#include <thread>
#include <utility>

#include "rpc/detail/bind_address.h"
#include "rpc/detail/data_pipe.h"
#include "rpc/detail/envelope.h"
#include "rpc/detail/frames.h"
#include "rpc/detail/incoming_calls.h"
#include "rpc/detail/peer_state.h"
#include "rpc/detail/tensor_format.h"
#include "rpc/loop/loop.h"
#include "rpc/network/peer_address.h"
#include "tests/support/thrown.h"
#include "tests/support/wait_until.h"

namespace retort::rpc::detail {
namespace {

using namespace std::chrono_literals;
using test::code_of;

TEST(Frames, ReadyIsChecked) {
  const Ready good{.incarnation = "incarnation", .max_message_bytes = 5, .max_inflight_calls = 1};
  EXPECT_EQ(parse_ready(to_bytes(good)).max_message_bytes, 5u);
  for (const std::string& incarnation : {std::string(), std::string(kMaxNameBytes + 1, 'x')}) {
    Ready bad = good;
    bad.incarnation = incarnation;
    EXPECT_EQ(code_of([&] { parse_ready(to_bytes(bad)); }), ErrorCode::kCorrupt);
  }
  for (const std::vector<std::string>& devices :
       {std::vector<std::string>(kMaxDevices + 1, "GPU-0"), std::vector<std::string>{""},
        std::vector<std::string>{std::string(kMaxNameBytes + 1, 'x')}}) {
    Ready bad = good;
    bad.devices = devices;
    EXPECT_EQ(code_of([&] { parse_ready(to_bytes(bad)); }), ErrorCode::kCorrupt);
  }
  Ready takes_nothing = good;
  takes_nothing.max_inflight_calls = 0;
  EXPECT_EQ(code_of([&] { parse_ready(to_bytes(takes_nothing)); }), ErrorCode::kCorrupt);
  EXPECT_EQ(code_of([] { parse_ready("xyz"); }), ErrorCode::kCorrupt);
}

TEST(Envelope, SplitsWhatItJoined) {
  const Envelope envelope{
      .kind = MessageKind::kRequest, .call_id = 7, .method = "m", .timeout_ms = 5};
  const std::string payload = join_payload(envelope, "body");
  std::string_view body;
  EXPECT_EQ(split_payload(payload, body).call_id, 7u);
  const Envelope reply{.kind = MessageKind::kReply, .queue_us = 8, .handler_us = 9};
  EXPECT_EQ(split_payload(join_payload(reply, ""), body).queue_us, 8u);
  EXPECT_EQ(split_payload(join_payload(reply, ""), body).handler_us, 9u);
  split_payload(payload, body);
  EXPECT_EQ(body, "body");
  EXPECT_EQ(code_of([&] { split_payload(payload + "x", body); }), ErrorCode::kCorrupt);
  EXPECT_EQ(code_of([&] {
              split_payload(std::string_view(payload).substr(0, payload.size() - 1), body);
            }),
            ErrorCode::kCorrupt);
  auto bad = envelope;
  bad.version = kEnvelopeVersion + 1;
  EXPECT_EQ(code_of([&] { split_payload(join_payload(bad, ""), body); }), ErrorCode::kCorrupt);
  bad = envelope;
  bad.kind = static_cast<MessageKind>(9);
  EXPECT_EQ(code_of([&] { split_payload(join_payload(bad, ""), body); }), ErrorCode::kCorrupt);
  bad = envelope;
  bad.kind = MessageKind::kReply;  // replies name no method
  EXPECT_EQ(code_of([&] { split_payload(join_payload(bad, ""), body); }), ErrorCode::kCorrupt);
}

TEST(Envelope, ErrorsKeepCodeMessageOriginAndContext) {
  const auto sent = Error(ErrorCode::kMismatch, "vocabularies differ", "folder/file.cc:12",
                          {{"ours", "1"}, {"theirs", "2"}});
  const auto got = error_from_body(error_to_body(std::make_exception_ptr(sent)));
  EXPECT_EQ(got.code(), ErrorCode::kMismatch);
  EXPECT_EQ(got.message(), "vocabularies differ");
  EXPECT_EQ(got.origin(), "folder/file.cc:12");
  EXPECT_EQ(got.context(), sent.context());
  const auto untyped =
      error_from_body(error_to_body(std::make_exception_ptr(std::out_of_range("index 9"))));
  EXPECT_EQ(untyped.code(), ErrorCode::kRemote);
  EXPECT_EQ(untyped.message(), "index 9");
  EXPECT_EQ(error_from_body(error_to_body(std::make_exception_ptr(5))).code(), ErrorCode::kRemote);
  auto huge = Error(ErrorCode::kTimeout, std::string(1 << 20, 'x'));
  for (int i = 0; i < 100; ++i)
    huge = huge.with("key", std::string(1000, 'y'));
  EXPECT_LT(error_to_body(std::make_exception_ptr(huge)).size(), kMinMessageBytes);
  EXPECT_EQ(code_of([] { checked_code(200); }), ErrorCode::kCorrupt);
}

tensorpipe::Descriptor descriptor(uint64_t payload, const std::vector<TensorFormat>& formats) {
  tensorpipe::Descriptor d;
  d.payloads.resize(1);
  d.payloads[0].length = payload;
  for (const auto& format : formats) {
    tensorpipe::Descriptor::Tensor tensor;
    tensor.length = format.size_bytes();
    tensor.sourceDevice = tensorpipe::Device(tensorpipe::kCpuDeviceType, 0);
    tensor.metadata = format.to_bytes();
    d.tensors.push_back(tensor);
  }
  return d;
}

std::shared_ptr<ReceivePool> pool() { return std::make_shared<ReceivePool>(1 << 20); }

TEST(Descriptor, GoodOnesAreAllocated) {
  tensorpipe::Allocation allocation;
  const auto message =
      allocate(descriptor(10, {{at::kHalf, {2, 3}}, {at::kLong, {}}, {at::kFloat, {0, 5}}}), 1000,
               *pool(), allocation);
  EXPECT_EQ(message->payload.size(), 10u);
  ASSERT_EQ(message->tensors.size(), 3u);
  EXPECT_EQ(message->tensors[0].scalar_type(), at::kHalf);
  EXPECT_EQ(message->tensors[1].dim(), 0);
  EXPECT_EQ(message->tensors[2].sizes(), (std::vector<int64_t>{0, 5}));
  EXPECT_EQ(allocation.tensors.size(), 3u);
}

TEST(Descriptor, LimitsAreCheckedBeforeAllocation) {
  const auto code = [](const tensorpipe::Descriptor& d, uint64_t max) {
    tensorpipe::Allocation allocation;
    return code_of([&] { allocate(d, max, *pool(), allocation); });
  };
  // These would be terabytes: allocating first would not get as far as the check.
  EXPECT_EQ(code(descriptor(uint64_t{1} << 50, {}), uint64_t{4} << 30),
            ErrorCode::kResourceExhausted);
  EXPECT_EQ(code(descriptor(1, {{at::kByte, {int64_t{1} << 50}}}), uint64_t{4} << 30),
            ErrorCode::kResourceExhausted);
  EXPECT_EQ(code(descriptor(600, {{at::kByte, {600}}}), 1000), ErrorCode::kResourceExhausted)
      << "the sum counts";
  EXPECT_EQ(
      code(descriptor(1, std::vector<TensorFormat>(kMaxTensors + 1, {at::kByte, {1}})), 1 << 20),
      ErrorCode::kResourceExhausted);
}

TEST(Descriptor, ImpossibleOnesAreCorrupt) {
  const auto code = [](const std::function<void(tensorpipe::Descriptor&)>& change) {
    auto d = descriptor(4, {{at::kFloat, {2, 2}}});
    change(d);
    tensorpipe::Allocation allocation;
    return code_of([&] { allocate(d, 1 << 20, *pool(), allocation); });
  };

  // The tensor.
  EXPECT_EQ(code([](auto& d) { d.tensors[0].length = 15; }), ErrorCode::kCorrupt);
  EXPECT_EQ(code([](auto& d) { d.tensors[0].metadata += "x"; }), ErrorCode::kCorrupt);
  EXPECT_EQ(code([](auto& d) { d.tensors[0].metadata.clear(); }), ErrorCode::kCorrupt);
  EXPECT_EQ(code([](auto& d) { d.tensors[0].metadata[0] = 99; }), ErrorCode::kCorrupt);
  EXPECT_EQ(code([](auto& d) { d.tensors[0].metadata[1] = 17; }), ErrorCode::kCorrupt);
  EXPECT_EQ(code([](auto& d) {
              d.tensors[0].metadata = TensorFormat{at::kFloat, {-2, -2}}.to_bytes();
            }),
            ErrorCode::kCorrupt);
  EXPECT_EQ(code([](auto& d) {
              d.tensors[0].metadata = TensorFormat{at::kFloat, {int64_t{1} << 62, 4, 1}}.to_bytes();
            }),
            ErrorCode::kCorrupt);
  EXPECT_EQ(code([](auto& d) { d.tensors[0].metadata = std::string(4096, 'm'); }),
            ErrorCode::kCorrupt);
  EXPECT_EQ(code([](auto& d) { d.tensors[0].sourceDevice = tensorpipe::Device("cuda", 0); }),
            ErrorCode::kCorrupt);

  // The message around it.
  EXPECT_EQ(code([](auto& d) { d.payloads.clear(); }), ErrorCode::kCorrupt);
  EXPECT_EQ(code([](auto& d) { d.payloads.resize(2); }), ErrorCode::kCorrupt);
  EXPECT_EQ(code([](auto& d) { d.metadata = "mm"; }), ErrorCode::kCorrupt);
}

TEST(ReceivePool, ReusesWhatFitsAndKeepsABound) {
  const auto pool = std::make_shared<ReceivePool>(3 << 20);
  auto a = pool->allocate({at::kFloat, {1 << 18}});
  const auto* where = a.const_data_ptr();
  auto view = a.slice(0, 5, 9);
  a.reset();
  EXPECT_EQ(pool->idle_bytes(), 0u) << "a view still uses the memory";
  view.reset();
  EXPECT_EQ(pool->idle_bytes(), 1u << 20);
  auto larger = pool->allocate({at::kByte, {2 << 20}});
  EXPECT_NE(larger.const_data_ptr(), where);
  auto b = pool->allocate({at::kByte, {1000000}});
  EXPECT_EQ(b.const_data_ptr(), where);
  EXPECT_EQ(b.sizes(), (std::vector<int64_t>{1000000}));
  EXPECT_FALSE(b.is_inference());
  auto c = pool->allocate({at::kByte, {2 << 20}});
  b.reset();
  c.reset();
  larger.reset();
  EXPECT_EQ(pool->idle_bytes(), 2u << 20)
      << "the longest unused went: 1 + 2 + 2 MiB is above the bound";
  auto survivor = pool->allocate({at::kByte, {300 << 10}});
  EXPECT_EQ(pool->idle_bytes(), 2u << 20) << "a block four times too large is not wasted on it";
}

TEST(Sendable, DevicesWithoutAMapNameIt) {
  RpcOptions options;
  WireMessage message;
  // stands for any device that is not the CPU
  message.tensors.push_back(at::empty({2}, at::kMeta));
  const auto refusal = [&](ErrorCode code) {
    return test::message_of([&] { address(message, "teacher/3", 1 << 20, options); }, code);
  };
  const std::string unmapped = refusal(ErrorCode::kInvalidArgument);
  EXPECT_NE(unmapped.find("no entry rpc.device_maps.teacher.0"), std::string::npos) << unmapped;
  EXPECT_NE(unmapped.find("add the key 0 to the map of 'teacher'"), std::string::npos) << unmapped;
  options.device_maps["teacher"]["0"] = 1;
  const std::string unloaded = refusal(ErrorCode::kUnavailable);
  EXPECT_NE(unloaded.find("retort_cuda"), std::string::npos) << unloaded;
}

constexpr uint64_t kMiB = uint64_t{1} << 20;

std::shared_ptr<void> take(const std::shared_ptr<PeerState>& peer, uint64_t bytes,
                           NoCredit without = NoCredit::kWait,
                           std::chrono::milliseconds timeout = 30s) {
  return PeerState::acquire(peer, bytes, Deadline::after(timeout), without);
}

TEST(Credit, WaitsForRoomAndTakesLargeCallsAlone) {
  const auto peer = std::make_shared<PeerState>("p", 100 * kMiB, 4096);
  auto first = take(peer, 60 * kMiB);
  EXPECT_EQ(code_of([&] { take(peer, 60 * kMiB, NoCredit::kFail); }),
            ErrorCode::kResourceExhausted);
  EXPECT_EQ(code_of([&] { take(peer, 60 * kMiB, NoCredit::kWait, 5ms); }), ErrorCode::kTimeout);
  auto second = take(peer, 40 * kMiB, NoCredit::kFail);
  auto beyond = take(peer, 60 * kMiB, NoCredit::kOverdraw);
  EXPECT_EQ(peer->stats().inflight_bytes, 160 * kMiB);
  beyond.reset();

  // A call that is larger than the window goes alone, when all large ones have ended. A small one
  // that stays does not keep it back.
  const auto stays = take(peer, 1000);
  std::thread waiter([&] {
    const auto alone = take(peer, 1000 * kMiB);
    EXPECT_EQ(peer->stats().inflight_bytes, 1000 * kMiB + 1000);
  });
  first.reset();
  second.reset();
  waiter.join();

  // Nobody is left waiting by an agent that closes.
  const auto last = take(peer, 100 * kMiB);
  std::thread closer([&] { peer->close(); });
  EXPECT_EQ(code_of([&] { take(peer, kMiB); }), ErrorCode::kClosed);
  closer.join();
}

TEST(Credit, LargeCallsGetItInTheOrderOfTheirAsking) {
  const auto peer = std::make_shared<PeerState>("p", 100 * kMiB, 4096);
  auto first = take(peer, 60 * kMiB);
  std::atomic<bool> large_has_it{false};
  std::thread large([&] {
    const auto credit = take(peer, 90 * kMiB);
    large_has_it = true;
  });
  // It fits beside the first, but stands behind the other: so it is refused until that is through.
  while (!test::thrown([&] { take(peer, 10 * kMiB, NoCredit::kFail); }) && !large_has_it)
    std::this_thread::yield();
  EXPECT_FALSE(large_has_it);
  EXPECT_NO_THROW(take(peer, 1000, NoCredit::kFail)) << "a small one passes";
  first.reset();
  large.join();
}

TEST(Loop, SleepsWhenTheSpinIsOverAndWakesForAnEvent) {
  Loop loop(1ms);
  loop.start();
  uint64_t before = 0;
  const auto looks_no_more = [&] {
    const uint64_t looks = loop.vain_looks();
    return looks > 0 && std::exchange(before, looks) == looks;
  };
  EXPECT_TRUE(test::wait_until(looks_no_more, 30s, 50ms)) << "looks for ever";
  std::promise<void> ran;
  ASSERT_TRUE(loop.post([&] { ran.set_value(); }));
  EXPECT_EQ(ran.get_future().wait_for(30s), std::future_status::ready);
  loop.stop();
  EXPECT_FALSE(loop.post([] {}));
}

// A process in touch with a thousand others would spend itself on heartbeats of one a second.
TEST(Options, HeartbeatsFollowTheNumberOfPeers) {
  RpcOptions options;
  EXPECT_EQ(options.heartbeats(), Duration(1'000));
  EXPECT_EQ(options.heartbeats(64), Duration(1'000));
  EXPECT_EQ(options.heartbeats(1'000), Duration(7'000));
  EXPECT_EQ(options.heartbeats(4'096), Duration(7'500)) << "half of peer_timeout";
  options.peer_timeout = Duration(150'000);
  EXPECT_EQ(options.heartbeats(4'096), Duration(28'672));
  options.heartbeat_interval = Duration(200);
  EXPECT_EQ(options.heartbeats(4'096), Duration(200)) << "as it was asked for";
}

TEST(Options, ValidateNamesTheField) {
  EXPECT_NO_THROW(RpcOptions().validate());
  const auto message = [](const std::function<void(RpcOptions&)>& change) {
    RpcOptions options;
    change(options);
    return test::message_of([&] { options.validate(); });
  };

  for (const char* gone : {"uv", "shm", "ibv"})
    EXPECT_NE(message([&](auto& o) { o.transports = {gone}; }).find("before they have proved"),
              std::string::npos);
  EXPECT_NE(message([](auto& o) { o.transports = {"tpc"}; }).find("did you mean 'tcp'"),
            std::string::npos);
  EXPECT_NE(message([](auto& o) { o.port = "70000"; }).find("rpc.port"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.transports = {}; }).find("rpc.transports"), std::string::npos);
  EXPECT_NE(message([](auto& o) {
              o.transports = {"tcp", "tcp"};
            }).find("twice"),
            std::string::npos);
  EXPECT_NE(message([](auto& o) { o.channels = {"cma"}; }).find("rpc.channels"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.timeout = Duration(0); }).find("rpc.timeout"),
            std::string::npos);
  EXPECT_NE(message([](auto& o) { o.max_message_bytes = {}; }).find("rpc.max_message_bytes"),
            std::string::npos);
  EXPECT_NE(message([](auto& o) { o.peer_timeout = Duration(1000); }).find("rpc.peer_timeout"),
            std::string::npos);
  EXPECT_NE(message([](auto& o) { o.spin = ShortDuration(-1); }).find("rpc.spin"),
            std::string::npos);
  EXPECT_NE(message([](auto& o) { o.spin = o.heartbeats(); }).find("would never sleep"),
            std::string::npos);
  EXPECT_NE(message([](auto& o) { o.device_maps["t"]["x"] = 0; }).find("rpc.device_maps.t"),
            std::string::npos);
  EXPECT_NE(message([](auto& o) {
              o.device_maps["t"] = {{"0", 1}, {"1", 1}};
            }).find("one to one"),
            std::string::npos);
}

// Of a peer that is lost: the job stays in the queue of handlers for as long as nobody takes it.
TEST(IncomingCalls, OneThatNobodyHasBegunGivesBackWhatItHolds) {
  auto room = std::make_shared<int>();
  const std::weak_ptr<int> held = room;
  const auto call = std::make_shared<IncomingCall>(CallContext{"student/0", 1, nullptr});
  call->request = Message{"request", {at::empty({4})}};
  call->room = std::exchange(room, nullptr);
  EXPECT_TRUE(call->drop());
  EXPECT_TRUE(held.expired());
  EXPECT_TRUE(call->request.tensors.empty());
  call->run();  // its job is taken at last: there is no handler, and none is called
  EXPECT_FALSE(call->drop());

  const auto running = std::make_shared<IncomingCall>(CallContext{"student/0", 2, nullptr});
  running->request = Message{"request", {at::empty({4})}};
  ASSERT_TRUE(running->start());
  EXPECT_FALSE(running->drop()) << "its handler has the request";
  EXPECT_EQ(running->request.tensors.size(), 1u);
}

TEST(Address, IsParsed) {
  EXPECT_EQ(parse_address("127.0.0.1:80").port, "80");
  EXPECT_EQ(parse_address("[::1]:80").host, "::1");
  for (const char* bad :
       {"", "host", ":80", "host:", "host:x", "host:0", "host:65536", "host:123456", "fe80::2:80"})
    EXPECT_EQ(code_of([&] { parse_address(bad); }), ErrorCode::kInvalidArgument) << bad;
}

TEST(Address, PortsAreANumberOrARange) {
  EXPECT_EQ(parse_ports("0").first, 0);
  EXPECT_EQ(parse_ports("7000").last, 7000);
  EXPECT_EQ(parse_ports("7000-7100").last, 7100);
  for (const char* bad : {"", "-", "7000-", "-7000", "7100-7000", "0-5", "65536", "7000 ", "a"})
    EXPECT_EQ(code_of([&] { parse_ports(bad); }), ErrorCode::kInvalidArgument) << bad;
}

TEST(Address, WhatIsBoundAndPublished) {
  EXPECT_EQ(resolve_bind("auto"), "127.0.0.1");
  EXPECT_EQ(resolve_bind("::1"), "::1");
  EXPECT_EQ(code_of([] { resolve_bind("0.0.0.0"); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([] { resolve_bind("no such name"); }), ErrorCode::kUnavailable);

  EXPECT_EQ(advertised("", "127.0.0.1:70"), "127.0.0.1:70");
  EXPECT_EQ(advertised("gpu1", "127.0.0.1:70"), "gpu1:70");
  EXPECT_EQ(advertised("gpu1:80", "127.0.0.1:70"), "gpu1:80");
  EXPECT_EQ(advertised("[fe80::2]", "[::1]:70"), "[fe80::2]:70");
  EXPECT_EQ(advertised("[fe80::2]:80", "[::1]:70"), "[fe80::2]:80");
  EXPECT_EQ(code_of([] { advertised("gpu1:x", "[::1]:70"); }), ErrorCode::kInvalidArgument);

  EXPECT_FALSE(encrypts(Encryption::kAuto, "127.0.0.1"));
  EXPECT_FALSE(encrypts(Encryption::kAuto, "localhost"));
  EXPECT_TRUE(encrypts(Encryption::kAuto, "10.0.0.1"));
  EXPECT_TRUE(encrypts(Encryption::kAuto, "gpu1"));
  EXPECT_TRUE(encrypts(Encryption::kAlways, "::1"));
  EXPECT_FALSE(encrypts(Encryption::kNever, "10.0.0.1"));
}

}  // namespace
}  // namespace retort::rpc::detail

// Decodes: what clients say to the run's store (rpc/rendezvous): frames in pieces of the size that
//   the first byte says, and the requests in them, which a store with small limits serves.
// Holds: every request has one reply, the waiting ones at the end of their time; replies, keys and
//   bytes stay within the limits.
#include "rpc/launcher_port/frame_connection.h"
#include "rpc/rendezvous/store_state.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/memory_stream.h"
#include "tests/fuzz/target_list.h"

namespace retort::fuzz::store {
namespace {

using namespace rpc::rendezvous;

constexpr StoreLimits kLimits{.max_key_bytes = 64,
                              .max_value_bytes = 256,
                              .max_frame_bytes = 2048,
                              .max_unsent_bytes = 1 << 16,
                              .max_keys = 32,
                              .max_stored_bytes = 4096,
                              .max_waiters = 16,
                              .max_waiting_bytes = 8192};
constexpr uint64_t kConnection = 1;

bool decode(std::string_view bytes) {
  size_t requests = 0;
  size_t replies = 0;
  StoreState store(kLimits, [&](uint64_t connection, const StoreReply& reply) {
    expect(connection == kConnection, "a reply for somebody else");
    const std::string content = rpc::to_bytes(reply);
    expect(content.size() <= kLimits.max_frame_bytes + 1024, "a reply is larger than a frame");
    ++replies;
  });

  ByteSource source(bytes);
  const size_t piece = source.byte() + 1;
  boost::asio::io_context io;
  const auto stream = std::make_shared<MemoryStream>(io, source.rest(), piece);
  const auto connection =
      std::make_shared<rpc::launcher_port::FrameConnection>(io, stream, kLimits.frames());
  const StoreState::TimePoint start;
  std::optional<Error> end;
  connection->start(
      [&](std::string_view content) {
        auto request = rpc::from_bytes<StoreRequest>(content);
        expect(rpc::to_bytes(request) == content, "encoded again it has other bytes");
        ++requests;
        store.handle(kConnection, std::move(request), start);
        expect(requests == replies + store.num_waiters(), "a request has not one reply");
        expect(store.num_keys() <= kLimits.max_keys, "too many keys");
        expect(store.stored_bytes() <= kLimits.max_stored_bytes, "too many bytes");
      },
      [&](const Error& error) { end = error; });
  io.run();

  expect(end.has_value(), "a connection ended without an error");
  store.expire(start + kMaxStoreTimeout);
  expect(store.num_waiters() == 0 && requests == replies, "a request was never answered");
  return requests > 0 && end->code() == ErrorCode::kPeerLost;
}

std::vector<Seed> seeds() {
  const auto wire = [](std::vector<StoreRequest> requests) {
    ByteSink sink;
    sink.byte(30);
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].id = i + 1;
      sink.raw(frame_of(requests[i]));
    }
    return sink.bytes();
  };
  return {
      {"values", wire({{.op = StoreOp::kSet, .keys = {"a", "b"}, .values = {"1", "x"}},
                       {.op = StoreOp::kGet, .keys = {"a", "b"}},
                       {.op = StoreOp::kAdd, .keys = {"a"}, .number = 41},
                       {.op = StoreOp::kAppend, .keys = {"b"}, .values = {"yz"}},
                       {.op = StoreOp::kDelete, .keys = {"b"}},
                       {.op = StoreOp::kCountKeys}})},
      {"waits", wire({{.op = StoreOp::kWait, .keys = {"a", "b"}, .timeout_ms = 1000},
                      {.op = StoreOp::kGet, .keys = {"b"}, .timeout_ms = 10},
                      {.op = StoreOp::kCheck, .keys = {"a"}},
                      {.op = StoreOp::kCompareSet, .keys = {"a"}, .values = {"", "1"}},
                      {.op = StoreOp::kSet, .keys = {"b"}, .values = {"2"}}})},
  };
}

}  // namespace

Target target() { return {"store", decode, seeds}; }

}  // namespace retort::fuzz::store

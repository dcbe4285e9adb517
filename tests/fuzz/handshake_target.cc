// Decodes: a whole proof (rpc/transport/handshake.h) as a server or as a client reads it, before it
//   knows who is there. The first byte says which side, the second the size of the pieces.
// Holds: it ends, and it ends refused: nobody proves a secret without knowing it.
#include "rpc/transport/handshake.h"

#include "rpc/transport/key_schedule.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/memory_stream.h"
#include "tests/fuzz/target_list.h"

namespace retort::fuzz::handshake {
namespace {

using namespace rpc::transport;

Identity identity(const std::string& name) {
  return {.name = name, .run = "run", .schema = "schema", .credentials = {{"key", "a secret"}}};
}

// Deadlines are not what is tested; it ends when the bytes do.
Deadline never() { return Deadline::after(std::chrono::hours(1)); }

bool decode(std::string_view bytes) {
  ByteSource source(bytes);
  const bool server = source.byte() % 2 == 0;
  const size_t piece = source.byte() + 1;
  boost::asio::io_context io;
  const auto stream = std::make_shared<MemoryStream>(io, source.rest(), piece);
  const Identity self = identity(server ? "teacher/0" : "student/0");
  NonceMemory nonces;
  const ServerPolicy policy{
      .find_session =
          [](const std::string& session) {
            return session == "s" ? std::optional(SessionKey{"k", "student/0"}) : std::nullopt;
          },
      .nonces = &nonces};

  std::shared_ptr<Handshake> handshake;
  if (server)
    handshake = std::make_shared<ServerHandshake>(io, stream, self, policy);
  else
    handshake =
        std::make_shared<ClientHandshake>(io, stream, self, ProofTarget{.name = "teacher/0"});
  std::optional<HandshakeResult> result;
  handshake->start(never(), [&](HandshakeResult end) { result = std::move(end); });
  io.run();

  expect(result.has_value(), "a handshake did not end");
  expect(result->refusal != Refusal::kNone && result->error, "somebody proved an unknown secret");
  expect(!result->stream, "a refused stream was handed out");
  // A first frame that was taken has an answer.
  const size_t sent_before = server ? 0 : to_bytes(ClientHello{}).size();
  return stream->written().size() > sent_before && result->refusal == Refusal::kClosed;
}

std::vector<Seed> seeds() {
  const ConnectionFacts there = MemoryStream::facts_over_there();
  const Identity student = identity("student/0");
  const std::string nonce(32, 'n');
  const std::string local = address_bytes(there.local), remote = address_bytes(there.remote);
  ClientHello control{.purpose = static_cast<uint8_t>(Purpose::kControl),
                      .nonce = nonce,
                      .name = "student/0",
                      .target = "teacher/0",
                      .run = sha256_raw("run"),
                      .credential = "key",
                      .local = local,
                      .remote = remote};
  ClientHello data = control;
  data.purpose = static_cast<uint8_t>(Purpose::kData);
  data.session = "s";
  // As somebody may say again who has heard them.
  control.mac = hello_mac(run_key("a secret", "run"), control, there);
  data.mac = hello_mac("k", data, there);
  const ServerHello server{.nonce = nonce, .name = "teacher/0", .local = local, .remote = remote};

  const std::string to_server = ByteSink().byte(0).byte(99).bytes();
  const std::string to_client = ByteSink().byte(1).byte(99).bytes();
  return {{"control", to_server + to_bytes(control)},
          {"data", to_server + to_bytes(data)},
          {"answer", to_client + to_bytes(server)}};
}

}  // namespace

Target target() { return {"handshake", decode, seeds}; }

}  // namespace retort::fuzz::handshake

// Decodes: the frames of a proof (rpc/transport/proof_frames.h), header and body, before anything
//   is proved. The first byte says which frame is expected.
// Holds: a frame that is taken is encoded into the very bytes that it came from.
#include "rpc/transport/proof_frames.h"

#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/memory_stream.h"
#include "tests/fuzz/target_list.h"

namespace retort::fuzz::proof_frames {
namespace {

using namespace rpc::transport;

template <class Frame>
bool decode_as(std::string_view bytes, ProofFrame type) {
  if (bytes.size() < kProofHeaderBytes) return false;
  const std::string_view body = bytes.substr(kProofHeaderBytes);
  const bool fits = check_header(bytes.substr(0, kProofHeaderBytes), type) == Refusal::kNone;
  Frame frame;
  if (!parse(body, frame) || !fits) return false;
  expect(to_bytes(frame) == bytes, "encoded again it has other bytes");
  return true;
}

bool decode(std::string_view bytes) {
  ByteSource source(bytes);
  const auto type = static_cast<ProofFrame>(source.byte() % 4 + 1);
  const std::string_view frame = source.rest();
  switch (type) {
    case ProofFrame::kClientHello: return decode_as<ClientHello>(frame, type);
    case ProofFrame::kServerHello: return decode_as<ServerHello>(frame, type);
    case ProofFrame::kClientProof: return decode_as<ClientProof>(frame, type);
    case ProofFrame::kVerdict: return decode_as<Verdict>(frame, type);
  }
  return false;
}

std::vector<Seed> seeds() {
  const std::string key(32, 'k');
  const std::string address = address_bytes(MemoryStream::facts_over_there().local);
  const ClientHello hello{.purpose = 1,
                          .nonce = key,
                          .name = "student/0",
                          .target = "teacher/0",
                          .run = key,
                          .credential = "run",
                          .local = address,
                          .remote = address,
                          .mac = key};
  const ServerHello answer{.nonce = key, .name = "teacher/0", .local = address, .remote = address};
  const auto seed = [](uint8_t type, const auto& frame) {
    return ByteSink().byte(type).raw(to_bytes(frame)).bytes();
  };
  return {{"client_hello", seed(0, hello)},
          {"server_hello", seed(1, answer)},
          {"client_proof", seed(2, ClientProof{key, key})},
          {"verdict", seed(3, Verdict{Refusal::kSchema, key, key})}};
}

}  // namespace

Target target() { return {"proof_frames", decode, seeds}; }

}  // namespace retort::fuzz::proof_frames

// Decodes: what the run's store answers (rpc/rendezvous/store_frames.h), as a client reads it.
// Holds: a reply that is taken is encoded into the very bytes that it came from.
#include "rpc/rendezvous/store_frames.h"
#include "tests/fuzz/target_list.h"

namespace retort::fuzz::store_reply {
namespace {

using namespace rpc::rendezvous;

bool decode(std::string_view bytes) {
  const auto reply = rpc::from_bytes<StoreReply>(bytes);
  expect(rpc::to_bytes(reply) == bytes, "encoded again it has other bytes");
  expect(key_list(reply.values).size() < bytes.size() + 100, "a list is longer than what it lists");
  return true;
}

std::vector<Seed> seeds() {
  return {{"values", rpc::to_bytes(StoreReply{.id = 1, .values = {"a", "bc"}})},
          {"number", rpc::to_bytes(StoreReply{.id = 2, .number = -5})},
          {"refused",
           rpc::to_bytes(StoreReply{.id = 3, .status = StoreStatus::kRefused, .text = "why"})}};
}

}  // namespace

Target target() { return {"store_reply", decode, seeds}; }

}  // namespace retort::fuzz::store_reply

// Decodes: payload 0 of a data message (rpc/detail/envelope.h), and the error in one that holds an
//   error.
// Holds: envelope and body are joined into the very bytes that they came from; an error keeps code
//   and origin when it is sent on.
#include "rpc/detail/envelope.h"

#include "tests/fuzz/target_list.h"

namespace retort::fuzz::envelope {
namespace {

bool decode(std::string_view bytes) {
  std::string_view body;
  const rpc::detail::Envelope envelope = rpc::detail::split_payload(bytes, body);
  expect(rpc::detail::join_payload(envelope, body) == bytes, "joined again it has other bytes");
  if (envelope.kind != rpc::detail::MessageKind::kError) return true;

  const Error error = rpc::detail::error_from_body(body);
  const std::string sent_on = rpc::detail::error_to_body(std::make_exception_ptr(error));
  expect(sent_on.size() < 64 << 10, "an error is longer than a message that is always accepted");
  const Error again = rpc::detail::error_from_body(sent_on);
  expect(again.code() == error.code(), "an error changes its code on the way");
  expect(again.origin().substr(0, 100) == error.origin().substr(0, 100), "or its origin");
  return true;
}

std::vector<Seed> seeds() {
  using rpc::detail::MessageKind;
  const auto error = std::make_exception_ptr(
      Error(ErrorCode::kTimeout, "too late").with("peer", "teacher/0").with("step", 3));
  return {
      {"request",
       rpc::detail::join_payload(
           {.call_id = 1, .method = "teacher.info", .schema = 7, .timeout_ms = 1000}, "body")},
      {"reply", rpc::detail::join_payload({.kind = MessageKind::kReply, .call_id = 1}, "body")},
      {"error", rpc::detail::join_payload({.kind = MessageKind::kError, .call_id = 1},
                                          rpc::detail::error_to_body(error))},
  };
}

}  // namespace

Target target() { return {"envelope", decode, seeds}; }

}  // namespace retort::fuzz::envelope

#include "rpc/detail/envelope.h"

#include <algorithm>

#include "rpc/detail/frames.h"

namespace retort::rpc::detail {
namespace {

// Together these stay below the size of a message that is always accepted.
constexpr size_t kMaxErrorText = 16 << 10;
constexpr size_t kMaxErrorContext = 32;
constexpr size_t kMaxContextText = 256;

std::string shortened(const std::string& text, size_t size) {
  return text.size() <= size ? text : text.substr(0, size) + " ...";
}

}  // namespace

std::string join_payload(Envelope envelope, std::string_view body) {
  envelope.body_bytes = body.size();
  std::string payload = to_bytes(envelope);
  payload += body;
  return payload;
}

Envelope split_payload(std::string_view payload, std::string_view& body) {
  InputArchive archive(payload, nullptr);
  Envelope envelope;
  archive(envelope);
  if (envelope.version != kEnvelopeVersion)
    throw Error(ErrorCode::kCorrupt, "envelope has another version")
        .with("version", envelope.version);
  if (envelope.body_bytes != archive.remaining_bytes())
    throw Error(ErrorCode::kCorrupt, "envelope and body sizes disagree")
        .with("said", envelope.body_bytes)
        .with("found", archive.remaining_bytes());
  // A request names its method, and nothing else does.
  const bool request = envelope.kind == MessageKind::kRequest;
  if (envelope.method.size() > kMaxMethodBytes || envelope.method.empty() == request ||
      envelope.timeout_ms < 0)
    throw Error(ErrorCode::kCorrupt, "envelope has a bad method or timeout");
  body = payload.substr(payload.size() - archive.remaining_bytes());
  return envelope;
}

std::string error_to_body(const std::exception_ptr& error) {
  WireError wire;
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    // It keeps its code, its origin and as much of its context as a small message can take.
    wire = {static_cast<uint8_t>(e.code()),
            shortened(e.message(), kMaxErrorText),
            shortened(e.origin(), kMaxContextText),
            {}};
    for (const auto& [key, value] : e.context())
      if (wire.context.size() < kMaxErrorContext)
        wire.context.emplace_back(shortened(key, kMaxContextText),
                                  shortened(value, kMaxContextText));
  } catch (const std::exception& e) {
    // Any other exception reaches the caller as kRemote, with its text.
    wire = {static_cast<uint8_t>(ErrorCode::kRemote),
            shortened(e.what(), kMaxErrorText),
            "handler",
            {}};
  } catch (...) {
    wire = {static_cast<uint8_t>(ErrorCode::kRemote),
            "the handler threw something that is no std::exception",
            "handler",
            {}};
  }

  return to_bytes(wire);
}

Error error_from_body(std::string_view body) {
  auto wire = from_bytes<WireError>(body);
  return Error(checked_code(wire.code), std::move(wire.message), std::move(wire.origin),
               std::move(wire.context));
}

}  // namespace retort::rpc::detail

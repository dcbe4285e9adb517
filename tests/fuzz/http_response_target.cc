// Decodes: an answer to an HTTP request (http/detail/response_reader.h), which ends where the input
//   does. The first byte says in pieces of which size it comes.
// Holds: whether it is taken, its status and its body do not depend on how it is cut, unless bytes
//   follow its end, which only those see that get them; no body is longer than its limit.
#include "http/detail/response_reader.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/target_list.h"

namespace retort::fuzz::http_response {
namespace {

constexpr uint64_t kBodyLimitBytes = 10'000;

// nullopt if it is refused. `all_read`: whether the last byte was asked for.
std::optional<http::Response> read(std::string_view bytes, size_t piece, bool& all_read) {
  http::Request request;
  request.limits.body_bytes = kBodyLimitBytes;
  http::detail::ResponseReader reader(request);
  try {
    while (!bytes.empty()) {
      const auto room = reader.room();
      const size_t now = std::min({piece, bytes.size(), room.size()});
      std::memcpy(room.data(), bytes.data(), now);
      bytes.remove_prefix(now);
      all_read = bytes.empty();
      if (reader.add(now)) return reader.release();
    }
    if (reader.add_end()) return reader.release();
  } catch (const Error&) {
  }
  return std::nullopt;
}

bool decode(std::string_view bytes) {
  ByteSource source(bytes);
  const size_t piece = source.byte() % 32 + size_t{1};
  const std::string_view text = source.rest();
  bool whole_read = true;
  bool pieces_read = true;
  const auto whole = read(text, text.size(), whole_read);
  const auto pieces = read(text, piece, pieces_read);
  if (!pieces_read || !whole_read) return whole.has_value();

  expect(whole.has_value() == pieces.has_value(), "pieces decide whether an answer is taken");
  if (!whole) return false;
  expect(whole->status == pieces->status, "another status in pieces");
  expect(whole->body == pieces->body, "another body in pieces");
  expect(whole->body.size() <= std::max<uint64_t>(kBodyLimitBytes, http::detail::kKeptBytes),
         "a body beyond its limit");
  return true;
}

std::vector<Seed> seeds() {
  const auto seed = [](uint8_t piece, std::string_view text) {
    return ByteSink().byte(piece).raw(text).bytes();
  };
  return {{"length", seed(3, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")},
          {"chunked", seed(1,
                           "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n"
                           "0\r\nTrailer: 1\r\n\r\n")},
          {"to_the_end", seed(7, "HTTP/1.0 200 OK\r\nServer: x\r\n\r\nhello")},
          {"interim", seed(2, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n")},
          {"error", seed(9, "HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 2\r\n\r\nno")}};
}

}  // namespace

Target target() { return {"http_response", decode, seeds}; }

}  // namespace retort::fuzz::http_response

// Decodes: small texts that other processes and services say: addresses, URLs, durations,
//   sizes. The first byte says which.
// Holds: what is taken is written as a text that means the same.
#include "base/units.h"
#include "http/url.h"
#include "rpc/network/peer_address.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/target_list.h"

namespace retort::fuzz::text {
namespace {

void decode_address(const std::string& text) {
  const auto address = rpc::detail::parse_address(text);
  const bool v6 = address.host.find(':') != std::string::npos;
  const auto again = rpc::detail::parse_address((v6 ? "[" + address.host + "]" : address.host) +
                                                ":" + address.port);
  expect(again.host == address.host && again.port == address.port, "another address");
}

void decode_url(const std::string& text) {
  const http::Url url = http::parse_url(text);
  const http::Url again = http::parse_url(url.origin() + url.target);
  expect(again.tls == url.tls && again.host == url.host && again.port == url.port &&
             again.target == url.target,
         "another URL");
}

bool decode(std::string_view bytes) {
  ByteSource source(bytes);
  const uint8_t kind = source.byte();
  const std::string text(source.rest());
  switch (kind % 4) {
    case 0: decode_address(text); break;
    case 1: decode_url(text); break;
    case 2: {
      const Duration duration = parse_duration(text);
      expect(parse_duration(format_duration(duration)) == duration, "another duration");
      break;
    }
    case 3: {
      const ByteSize size = parse_byte_size(text);
      expect(parse_byte_size(format_byte_size(size)) == size, "another size");
      break;
    }
  }
  return true;
}

std::vector<Seed> seeds() {
  const auto seed = [](uint8_t kind, std::string_view text) {
    return ByteSink().byte(kind).raw(text).bytes();
  };
  return {{"address", seed(0, "10.0.0.1:4000")},
          {"address_v6", seed(0, "[::1]:4000")},
          {"url", seed(1, "http://localhost:8000/score?x=1")},
          {"url_tls", seed(1, "https://a.example/b")},
          {"url_v6", seed(1, "http://[::1]")},
          {"duration", seed(2, "250ms")},
          {"duration_hours", seed(2, "2h")},
          {"size", seed(3, "64MiB")},
          {"size_bytes", seed(3, "1000000")}};
}

}  // namespace

Target target() { return {"text", decode, seeds}; }

}  // namespace retort::fuzz::text

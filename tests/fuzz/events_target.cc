// Decodes: a stream of server-sent events (http/events.h). The first byte says in pieces of which
//   size it comes.
// Holds: the same events however it is cut; what is read can be written as a stream of the same
//   events; none is longer than its limit.
#include "http/events.h"

#include <vector>

#include "base/error.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/target_list.h"

namespace retort::fuzz::events {
namespace {

constexpr uint64_t kEventLimitBytes = 1000;

struct Stream {
  std::vector<http::Event> events;
  bool taken = false;
};

Stream read(std::string_view bytes, size_t piece) {
  Stream stream;
  http::EventReader reader([&](const http::Event& event) { stream.events.push_back(event); },
                           {.event_bytes = kEventLimitBytes});
  try {
    for (size_t at = 0; at < bytes.size(); at += piece)
      reader.feed(bytes.substr(at, piece));
    reader.finish();
    stream.taken = true;
  } catch (const Error&) {
  }
  return stream;
}

bool equal(const Stream& a, const Stream& b) {
  if (a.taken != b.taken || a.events.size() != b.events.size()) return false;
  for (size_t i = 0; i < a.events.size(); ++i)
    if (a.events[i].type != b.events[i].type || a.events[i].data != b.events[i].data) return false;
  return true;
}

std::string written(const Stream& stream) {
  std::string text;
  for (const http::Event& event : stream.events) {
    if (!event.type.empty()) text += "event: " + event.type + "\n";
    text += "data: ";
    for (const char c : event.data)
      text += c == '\n' ? std::string("\ndata: ") : std::string(1, c);
    text += "\n\n";
  }
  return text + "data: [DONE]\n\n";
}

bool decode(std::string_view bytes) {
  ByteSource source(bytes);
  const size_t piece = source.byte() % 32 + size_t{1};
  const std::string_view text = source.rest();
  const Stream whole = read(text, text.size() + 1);
  expect(equal(whole, read(text, piece)), "pieces change the events");
  for (const http::Event& event : whole.events)
    expect(event.data.size() <= kEventLimitBytes, "an event beyond its limit");

  // Lines count towards the limit of an event: "data: " may be what is too much.
  const Stream again = read(written(whole), piece);
  const size_t longest = kEventLimitBytes / 8;
  for (const http::Event& event : whole.events)
    if (event.data.size() > longest || event.type.size() > longest) return whole.taken;
  if (whole.taken) expect(equal(whole, again), "other events when written anew");
  return whole.taken;
}

std::vector<Seed> seeds() {
  const auto seed = [](uint8_t piece, std::string_view text) {
    return ByteSink().byte(piece).raw(text).bytes();
  };
  return {{"lines", seed(1, "data: {\"a\": 1}\n\ndata: [DONE]\n\n")},
          {"returns",
           seed(2, ": hi\r\n\r\nevent: x\r\ndata: a\r\ndata: b\r\n\r\ndata: [DONE]\r\n\r\n")},
          {"lone_returns", seed(3,
                                "\xef\xbb\xbf"
                                "data:a\r\rdata\r\rdata: [DONE]\r\r")}};
}

}  // namespace

Target target() { return {"events", decode, seeds}; }

}  // namespace retort::fuzz::events

// Streams of events, however they are cut.
#include "http/events.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/thrown.h"

namespace retort::http {
namespace {

using Events = std::vector<std::string>;  // "type|data"

Events read(std::string_view stream, size_t size, EventOptions options = {}) {
  Events events;
  EventReader reader([&](const Event& event) { events.push_back(event.type + "|" + event.data); },
                     std::move(options));
  for (size_t at = 0; at < stream.size(); at += size)
    reader.feed(stream.substr(at, size));
  reader.finish();
  return events;
}

constexpr size_t kSizes[] = {1, 2, 3, 5, 1000};

TEST(EventReader, ReadsEventsHoweverTheyAreCut) {
  const struct {
    const char* stream;
    Events expected;
  } cases[] = {
      {"data: {\"a\": 1}\n\ndata: [DONE]\n\n", {"|{\"a\": 1}"}},
      {"data: a\r\n\r\ndata: b\r\n\r\ndata: [DONE]\r\n\r\n", {"|a", "|b"}},
      {"data: a\r\rdata: b\r\rdata: [DONE]\r\r", {"|a", "|b"}},
      {": ping\n\ndata: a\n: ping\ndata: b\n\ndata: [DONE]\n\n: bye\n\n", {"|a\nb"}},
      {"\xef\xbb\xbf"
       "data:a\ndata\ndata:  b\n\n\n\ndata: [DONE]\n\n",
       {"|a\n\n b"}},
      {"event: delta\nid: 7\nretry: 10\ndata: x:y\n\nevent: lost\n\ndata: z\n\ndata: [DONE]\n\n",
       {"delta|x:y", "|z"}},
      {"data: [DONE]\n\n", {}},
  };
  for (const auto& c : cases)
    for (const size_t size : kSizes)
      EXPECT_EQ(read(c.stream, size), c.expected) << c.stream << size;
}

TEST(EventReader, MayEndWithTheAnswer) {
  EXPECT_EQ(read("data: a\n\n", 3, {.end = ""}), Events{"|a"});
  EXPECT_EQ(read("", 3, {.end = ""}), Events{});
  EXPECT_EQ(read("data: a\n\ndata: stop\n\n", 3, {.end = "stop"}), Events{"|a"});
}

TEST(EventReader, RefusesStreamsThatBreakOff) {
  for (const size_t size : kSizes) {
    test::expect_error(ErrorCode::kCorrupt, "ends without '[DONE]'",
                       [&] { read("data: a\n\n", size); });
    test::expect_error(ErrorCode::kCorrupt, "within an event: 'half'",
                       [&] { read("data: a\n\ndata: half\n", size, {.end = ""}); });
    test::expect_error(ErrorCode::kCorrupt, "within an event: 'data: ha'",
                       [&] { read("data: a\n\ndata: ha", size, {.end = ""}); });
    test::expect_error(ErrorCode::kCorrupt, "goes on after its end '[DONE]': 'b'",
                       [&] { read("data: [DONE]\n\ndata: b\n\n", size); });
  }
}

TEST(EventReader, LimitsAnEvent) {
  std::string many;
  for (int i = 0; i < 30; ++i)
    many += "data: 0123456789\n";
  for (const std::string& stream : {std::string(101, 'x'), many})
    for (const size_t size : kSizes)
      test::expect_error(ErrorCode::kResourceExhausted, "limit of 100 bytes",
                         [&] { read(stream, size, {.event_bytes = 100}); });
}

}  // namespace
}  // namespace retort::http

// Decodes: what a launcher and `retort host` on another host say to each other
//   (launch/ssh/host_frames.h). The first byte says who speaks.
// Holds: a frame that is taken keeps its bounds, and is encoded into the very bytes that it came
//   from.
#include "launch/ssh/host_frames.h"

#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/target_list.h"

namespace retort::fuzz::host_frames {
namespace {

using namespace launch;

bool decode(std::string_view bytes) {
  ByteSource source(bytes);
  const bool is_launcher = source.byte() % 2 == 0;
  const std::string_view content = source.rest();
  std::string again;
  if (is_launcher) {
    const ToHost frame = read_to_host(content);
    expect(frame.number >= 0 && frame.number < 64, "a signal is none");
    expect(frame.kind == ToHostKind::kPlace || frame.limit_ms <= 0, "a time that nobody asked for");
    again = rpc::to_bytes(frame);
  } else {
    again = rpc::to_bytes(read_from_host(content));
  }
  expect(again == content, "encoded again it has other bytes");
  return true;
}

std::vector<Seed> seeds() {
  const auto down = [](const ToHost& frame) {
    return ByteSink().byte(0).raw(rpc::to_bytes(frame)).bytes();
  };
  const auto up = [](const FromHost& frame) {
    return ByteSink().byte(1).raw(rpc::to_bytes(frame)).bytes();
  };
  return {{"place", down({.kind = ToHostKind::kPlace,
                          .folder = "/a",
                          .run_folder = "/a/run",
                          .interval_ms = 1000,
                          .limit_ms = 15'000})},
          {"start", down({.kind = ToHostKind::kStart,
                          .id = 1,
                          .context = "{}",
                          .arguments = {"role", "--run", "r"},
                          .env = {{"A", "b"}, {"C", "d"}},
                          .log = "logs/teacher-0.log"})},
          {"signal", down({.kind = ToHostKind::kSignal, .id = 1, .number = 15, .group = true})},
          {"examine", down({.kind = ToHostKind::kExamine, .question = "limits"})},
          {"here", up({.kind = FromHostKind::kHere, .text = "mark", .number = 8})},
          {"output", up({.kind = FromHostKind::kOutput, .id = 1, .text = "a line\n"})},
          {"ended", up({.kind = FromHostKind::kEnded, .id = 1, .number = 9})}};
}

}  // namespace

Target target() { return {"host_frames", decode, seeds}; }

}  // namespace retort::fuzz::host_frames

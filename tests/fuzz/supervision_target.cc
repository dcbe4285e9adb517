// Decodes: what a launcher and a process say to each other (rpc/supervision/supervision_frames.h).
//   The first byte says who speaks.
// Holds: a frame that is taken keeps its bounds, and is encoded into the very bytes that it came
//   from.
#include "rpc/supervision/supervision_frames.h"

#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/target_list.h"

namespace retort::fuzz::supervision {
namespace {

using namespace rpc::supervision;

bool decode(std::string_view bytes) {
  ByteSource source(bytes);
  const bool is_process = source.byte() % 2 == 0;
  const std::string_view content = source.rest();
  std::string again;
  if (is_process) {
    const ProcessFrame frame = read_process_frame(content);
    expect(frame.report.size() <= rpc::kMaxReportBytes, "a report is too long");
    expect(frame.restart >= 0, "a process was started again less than never");
    again = rpc::to_bytes(frame);
  } else {
    const LauncherFrame frame = read_launcher_frame(content);
    expect(frame.within_ms >= 0 && Duration(frame.within_ms) <= kLongestStop, "a time is too long");
    again = rpc::to_bytes(frame);
  }
  expect(again == content, "encoded again it has other bytes");
  expect(content.size() <= kFrameLimits.max_frame_bytes, "a frame does not fit into one");
  return true;
}

std::vector<Seed> seeds() {
  const auto up = [](const ProcessFrame& frame) {
    return ByteSink().byte(0).raw(rpc::to_bytes(frame)).bytes();
  };
  const auto down = [](const LauncherFrame& frame) {
    return ByteSink().byte(1).raw(rpc::to_bytes(frame)).bytes();
  };
  return {{"hello", up({.kind = FromProcess::kHello, .restart = 2})},
          {"report", up({.kind = FromProcess::kReport, .sequence = 7, .report = "text"})},
          {"stopping", up({.kind = FromProcess::kStopping})},
          {"welcome", down({.kind = FromLauncher::kWelcome, .sequence = 3})},
          {"stop", down({.kind = FromLauncher::kStop, .within_ms = 120'000})},
          {"replaced", down({.kind = FromLauncher::kReplaced})}};
}

}  // namespace

Target target() { return {"supervision", decode, seeds}; }

}  // namespace retort::fuzz::supervision

#include "rpc/supervision/supervision_frames.h"

namespace retort::rpc::supervision {
namespace {

void require(bool holds, std::string_view kind, const char* what) {
  if (holds) return;
  throw Error(ErrorCode::kCorrupt, std::string("a supervision frame is impossible: ") + what)
      .with("kind", kind);
}

}  // namespace

ProcessFrame read_process_frame(std::string_view content) {
  auto frame = from_bytes<ProcessFrame>(content);
  const std::string_view kind = enum_name(frame.kind);
  const bool is_report = frame.kind == FromProcess::kReport;
  const bool is_hello = frame.kind == FromProcess::kHello;

  require(is_hello ? frame.restart >= 0 : frame.restart == 0, kind, "its number of restarts");
  require(is_report == (frame.sequence > 0), kind, "its number");
  require(is_report || frame.report.empty(), kind, "it has a report");
  require(frame.report.size() <= kMaxReportBytes, kind, "its report is too long");
  return frame;
}

LauncherFrame read_launcher_frame(std::string_view content) {
  const auto frame = from_bytes<LauncherFrame>(content);
  const std::string_view kind = enum_name(frame.kind);
  const bool counts = frame.kind == FromLauncher::kWelcome || frame.kind == FromLauncher::kTaken;
  const int64_t longest_ms = std::chrono::milliseconds(kLongestStop).count();
  const bool time_fits = frame.within_ms >= 0 && frame.within_ms <= longest_ms;

  require(counts || frame.sequence == 0, kind, "its number");
  require(frame.kind == FromLauncher::kStop ? time_fits : frame.within_ms == 0, kind, "its time");
  return frame;
}

}  // namespace retort::rpc::supervision

#include "launch/ssh/host_frames.h"

#include "base/error.h"

namespace retort::launch {
namespace {

void require_frame(bool holds, std::string_view kind, const char* what) {
  if (holds) return;
  throw Error(ErrorCode::kCorrupt, std::string("a frame is impossible: ") + what)
      .with("kind", kind);
}

}  // namespace

ToHost read_to_host(std::string_view content) {
  auto frame = rpc::from_bytes<ToHost>(content);
  const std::string_view kind = enum_name(frame.kind);
  // One struct stands for all kinds of frames, so that what each kind needs is checked here, once.
  const bool of_process = frame.kind == ToHostKind::kStart || frame.kind == ToHostKind::kSignal;
  require_frame(of_process == (frame.id != 0), kind, "its process");
  const bool is_place = frame.kind == ToHostKind::kPlace;
  require_frame(is_place == (frame.interval_ms > 0) && is_place == (frame.limit_ms > 0), kind,
                "its times");
  require_frame(frame.number >= 0 && frame.number < 64, kind, "its signal");
  require_frame((frame.kind == ToHostKind::kExamine) == !frame.question.empty(), kind,
                "its question");
  return frame;
}

FromHost read_from_host(std::string_view content) {
  auto frame = rpc::from_bytes<FromHost>(content);
  using K = FromHostKind;
  const bool of_process = frame.kind == K::kStarted || frame.kind == K::kOutput ||
                          frame.kind == K::kHeld || frame.kind == K::kEnded;
  require_frame(!of_process || frame.id != 0, enum_name(frame.kind), "its process");
  return frame;
}

}  // namespace retort::launch

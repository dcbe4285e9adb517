// Decodes: what a process tells its launcher (launch/supervision/process_status.h). The first byte
//   says whether the input is such a message, or the text that a process wants to send.
// Holds: what is sent can be read, whatever text a process sends, and says the same.
#include "launch/supervision/process_status.h"

#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/target_list.h"

namespace retort::fuzz::status {
namespace {

using launch::ProcessStatus;

// Whatever is sent arrives, and sent on as it arrived it stays as it is.
void expect_readable(const ProcessStatus& status) {
  const auto arrived = launch::decode_status(launch::encode_status(status));
  expect(arrived.has_value(), "a status that was sent cannot be read");
  expect(arrived->state == status.state && arrived->error == status.error &&
             arrived->step == status.step && arrived->of_another_rank == status.of_another_rank &&
             arrived->ended == status.ended && arrived->signal == status.signal &&
             arrived->warning == status.warning,
         "a status changes on the way");
  expect(arrived->message.size() <= 3 * 1000 + 3, "a message is longer than it may be");
}

bool decode(std::string_view bytes) {
  ByteSource source(bytes);
  if (source.byte() % 2 == 0) {
    const auto status = launch::decode_status(source.rest());
    if (status) expect_readable(*status);
    return status.has_value();
  }
  const auto step = source.number<int64_t>();
  expect_readable({"failed", step, std::string(source.rest()), "kPeerLost", step % 2 == 0});
  return true;
}

std::vector<Seed> seeds() {
  const std::string text =
      launch::encode_status({"failed", 7, "two words \"quoted\" \xc3\xa9", "kCorrupt", true});
  const std::string last =
      launch::encode_status({.state = "ended", .ended = -15, .signal = 2, .warning = true});
  return {{"message", ByteSink().byte(0).raw(text).bytes()},
          {"last", ByteSink().byte(0).raw(last).bytes()},
          {"text", ByteSink().byte(1).number(int64_t{3}).raw("no file /data/\xe9.jsonl").bytes()}};
}

}  // namespace

Target target() { return {"status", decode, seeds}; }

}  // namespace retort::fuzz::status

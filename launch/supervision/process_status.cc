#include "launch/supervision/process_status.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json_text.h"

namespace retort::launch {
namespace {

constexpr size_t kMaxMessage = 1000;

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  if (text.size() > kMaxMessage) {
    size_t end = kMaxMessage;
    // The cut falls between characters, because half a character is no UTF-8.
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80)
      --end;
    text = text.substr(0, end) + "...";
  }
  return text;
}

// Messages quote paths and rows, which may have any encoding; a launcher reads UTF-8 alone.
std::string utf8_json(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string encode_status(const ProcessStatus& status) {
  return JsonLine()
      .add("state", status.state)
      .add("step", status.step)
      .raw("message", utf8_json(one_line(status.message)))
      .add("error", status.error)
      .add("of_another_rank", status.of_another_rank)
      .raw("ended", status.ended ? std::to_string(*status.ended) : "null")
      .add("signal", status.signal)
      .add("warning", status.warning)
      .str();
}

std::optional<ProcessStatus> decode_status(std::string_view text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;

  // The text came over a connection: a field that is missing, or of another kind, makes it no
  // status.
  ProcessStatus status;
  for (const auto& [key, field] : {std::pair{"state", &status.state},
                                   {"message", &status.message},
                                   {"error", &status.error}}) {
    const auto at = json.find(key);
    if (at == json.end() || !at->is_string()) return std::nullopt;
    *field = at->get<std::string>();
  }
  const auto step = json.find("step");
  if (step == json.end() || !step->is_number_integer()) return std::nullopt;
  status.step = step->get<int64_t>();
  const auto of_another_rank = json.find("of_another_rank");
  if (of_another_rank == json.end() || !of_another_rank->is_boolean()) return std::nullopt;
  status.of_another_rank = of_another_rank->get<bool>();

  const auto ended = json.find("ended");
  if (ended == json.end() || (!ended->is_null() && !ended->is_number_integer()))
    return std::nullopt;
  if (!ended->is_null()) status.ended = ended->get<int64_t>();
  const auto signal = json.find("signal");
  if (signal == json.end() || !signal->is_number_integer()) return std::nullopt;
  status.signal = signal->get<int64_t>();
  const auto warning = json.find("warning");
  if (warning == json.end() || !warning->is_boolean()) return std::nullopt;
  status.warning = warning->get<bool>();
  return status;
}

}  // namespace retort::launch

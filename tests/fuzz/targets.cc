#include <algorithm>

#include "base/error.h"
#include "tests/fuzz/target.h"
#include "tests/fuzz/target_list.h"

namespace retort::fuzz {

std::span<const Target> targets() {
  static const std::vector<Target> all{
      adapter_config::target(),
      answer::target(),
      archive::target(),
      chat_template::target(),
      control_frames::target(),
      envelope::target(),
      environment_answer::target(),
      events::target(),
      frame_reader::target(),
      generate_request::target(),
      handshake::target(),
      host_frames::target(),
      http_response::target(),
      kserve_answer::target(),
      message::target(),
      model_config::target(),
      named_answer::target(),
      payload::target(),
      proof_frames::target(),
      safetensors::target(),
      samples::target(),
      status::target(),
      store_reply::target(),
      store::target(),
      supervision::target(),
      table_rows::target(),
      teacher_request::target(),
      text::target(),
      tokenizer::target(),
      tool_calls::target(),
      yaml::target(),
  };
  return all;
}

const Target& find_target(std::string_view name) {
  std::string names;
  for (const Target& target : targets()) {
    if (target.name == name) return target;
    names += " " + std::string(target.name);
  }
  throw Error(ErrorCode::kInvalidArgument,
              "no fuzz target '" + std::string(name) + "'; there are:" + names);
}

void expect(bool holds, const std::string& what) {
  if (!holds) throw Broken(what);
}

bool run(const Target& target, std::string_view bytes) {
  try {
    return target.decode(bytes);
  } catch (const Error&) {
    return false;
  }
}

}  // namespace retort::fuzz

// Every target: a namespace and a file, <name>_target.cc, each.
#pragma once

#include "tests/fuzz/target.h"

namespace retort::fuzz {

namespace adapter_config {
Target target();
}
namespace answer {
Target target();
}
namespace archive {
Target target();
}
namespace chat_template {
Target target();
}
namespace control_frames {
Target target();
}
namespace envelope {
Target target();
}
namespace environment_answer {
Target target();
}
namespace events {
Target target();
}
namespace frame_reader {
Target target();
}
namespace generate_request {
Target target();
}
namespace handshake {
Target target();
}
namespace host_frames {
Target target();
}
namespace http_response {
Target target();
}
namespace kserve_answer {
Target target();
}
namespace message {
Target target();
}
namespace model_config {
Target target();
}
namespace named_answer {
Target target();
}
namespace payload {
Target target();
}
namespace proof_frames {
Target target();
}
namespace safetensors {
Target target();
}
namespace samples {
Target target();
}
namespace status {
Target target();
}
namespace store_reply {
Target target();
}
namespace store {
Target target();
}
namespace supervision {
Target target();
}
namespace table_rows {
Target target();
}
namespace teacher_request {
Target target();
}
namespace text {
Target target();
}
namespace tokenizer {
Target target();
}
namespace tool_calls {
Target target();
}
namespace yaml {
Target target();
}

}  // namespace retort::fuzz

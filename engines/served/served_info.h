// Describes a frozen role whose engine is not ours.
#pragma once

#include <string>

#include "models/config/config.h"
#include "models/text/tokenizer.h"
#include "roles/teacher/methods.h"

namespace retort::engines {

// A served model does not change within a run.
inline constexpr uint64_t kServedVersion = 1;

// The answer to teacher.info. `name`: "teacher/0". kInvalidArgument where it is asked for a
// fingerprint of weights, which no engine tells.
roles::TeacherInfo served_info(const std::string& name, const models::Tokenizer& tokenizer,
                               const models::ModelConfig& config,
                               const roles::InfoRequest& request);

}  // namespace retort::engines

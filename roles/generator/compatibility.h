// Whether a generator is one that a student's weights can be sent to, and token ids exchanged with.
#pragma once

#include <string>

#include "roles/generator/methods.h"

namespace retort::roles {

// What GeneratorInfo has to say; the student's own.
struct ExpectedGenerator {
  std::string vocabulary_fingerprint, parameters, base_weights;
  bool adapter_alone = false;  // is pushed
};

// kMismatch saying what differs and what to do.
void check_matches(const GeneratorInfo& info, const ExpectedGenerator& student);

}  // namespace retort::roles

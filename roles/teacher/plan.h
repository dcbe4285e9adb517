// What the leader of a teacher's replica tells the other ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "roles/teacher/methods.h"

namespace retort::roles {

struct TeacherPlan {
  enum class Kind : uint8_t { kNothing, kCompute, kStop };
  Kind kind = Kind::kNothing;
  std::vector<ForwardRequest> requests;  // kCompute: of one forward pass
  template <class A>
  void serialize(A& archive, uint32_t) {
    archive(kind, requests);
  }
};

}  // namespace retort::roles

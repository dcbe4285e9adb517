// Every divergence, tail and payload of linear_distill on problems with equal, larger and smaller
// teacher vocabularies: what another way of computing them is compared by.
#pragma once

#include <string>
#include <vector>

#include "tests/losses/fixtures.h"

namespace retort::losses {

struct DistillCase {
  std::string name;
  size_t problem = 0;  // of DistillCases::problems
  TeacherSignal signal;
  DivergenceOptions options;
  double tolerance = 1e-6;  // of gradients, by norm
};
struct DistillCases {
  std::vector<Problem> problems;
  std::vector<DistillCase> cases;
};
DistillCases distill_cases();

// The numbers of a result beside its gradients, with their names.
std::vector<std::pair<std::string, double>> numbers_of(const Outcome& outcome);

}  // namespace retort::losses

// Problems for the loss tests, the teacher's payloads computed from them in float64, and one call
// with its gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "recipes/losses/divergence.h"
#include "recipes/losses/linear_distill.h"
#include "recipes/losses/teacher_signal.h"
#include "tests/support/relative_difference.h"

namespace retort::losses {

struct Problem {
  at::Tensor hidden, weight, bias;  // float32; the biases may be undefined
  at::Tensor teacher_hidden, teacher_weight, teacher_bias;
  at::Tensor targets;
  int64_t common = 0;  // 0: equal vocabularies
};

struct ProblemSizes {
  int64_t rows = 0, vocab = 0, width = 0, teacher_vocab = 0, teacher_width = 0;
  bool bias = false;
};
Problem random_problem(const ProblemSizes& sizes, uint64_t seed);
// The same with the student as its own teacher.
Problem self_problem(const ProblemSizes& sizes, uint64_t seed);

TeacherHidden hidden_signal(const Problem& problem);
TeacherFull full_signal(const Problem& problem, double temperature);
TeacherTopK top_k_signal(const Problem& problem, double temperature, int64_t k);

// `count` draws of each row by Gumbel noise: without replacement the largest sums and kappa, with
// it the largest of each of `count` noises.
TeacherSampled sampled_signal(const Problem& problem, double temperature, int64_t count,
                              bool replacement, uint64_t seed);

struct Outcome {
  DistillResult result;
  double loss = 0;
  at::Tensor dh, dw, db;
};
// linear_distill on fresh leaves, then backward.
Outcome distill(const Problem& problem, const TeacherSignal& signal,
                const DivergenceOptions& options);

using test::relative_difference;

struct GoldenCase {
  std::string name, set;
  DivergenceOptions options;
  int64_t k = 0;
  double loss_sum = 0, loss32 = 0, kd = 0, ce = 0;
  at::Tensor dh, dw, db;
};
struct Goldens {
  std::map<std::string, Problem> sets;
  std::vector<GoldenCase> cases;
};
// Reads goldens.txt and goldens.bin beside this file.
Goldens read_goldens();

}  // namespace retort::losses

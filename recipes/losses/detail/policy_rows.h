// The inputs of policy_loss, checked, as numbers of a row.
#pragma once

#include <cstdint>
#include <vector>

#include "recipes/losses/detail/vector_arguments.h"
#include "recipes/losses/policy.h"

namespace retort::losses::detail {

struct PolicyRows {
  // kInvalidArgument as policy_loss says. Reads every tensor with a copy to the host.
  PolicyRows(const PolicyInputs& in, const PolicyOptions& options);

  bool has_surrogate(int64_t r) const { return surrogate.empty() || surrogate[r] != 0; }
  double advantage(int64_t r) const { return advantages[by_token ? r : sequence[r]]; }

  int64_t count = 0;      // R
  int64_t sequences;      // S
  bool by_token = false;  // whether the advantages are the rows' own, not their sequences'
  FloatVector policy, old, reference, generator, advantages;
  std::vector<char> surrogate;    // [R] as has_surrogate() says; empty: all have one
  std::vector<int64_t> sequence;  // [R]
  std::vector<int64_t> tokens;    // [S] how many rows each has

 private:
  void check_shapes(const PolicyInputs& in, const PolicyOptions& options);
  void count_tokens(const at::Tensor& sequence_of_row);
};

}  // namespace retort::losses::detail

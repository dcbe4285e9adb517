// A decoder's weights with its adapter added to them.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "models/decoder/decoder.h"
#include "parallel/parameter.h"

namespace retort::models {

// A decoder's weights with scaling * B A added to what is adapted, formed in fp32 and
// rounded once; the adapter's tensors of what is trained whole; the decoder's own where nothing is,
// and without an adapter. No autograd.
// Collectives: none.
class MergedWeights {
 public:
  // The decoder, whose adapter stays as it is, outlives this object.
  explicit MergedWeights(const Decoder& decoder);
  // Returns one of decoder.parameters() with its adapter added. Memory: a new tensor if it is
  // adapted, and while that is formed from weights of 2 bytes another of its size in fp32.
  at::Tensor of(const parallel::NamedParameter& parameter) const;

 private:
  std::map<std::string, std::pair<at::Tensor, at::Tensor>> factors_;  // A and B of a matrix
  std::map<std::string, at::Tensor> saved_;  // in the place of the decoder's own
  double scaling_ = 0;
};

// Decoder::parameters() with the MergedWeights. Memory: a new tensor for each adapted matrix.
std::vector<parallel::NamedParameter> merged_parameters(const Decoder& decoder);

// Adds it to the decoder's own weights and drops the adapter.
void merge_adapter(Decoder& decoder);

}  // namespace retort::models

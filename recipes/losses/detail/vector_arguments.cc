#include "recipes/losses/detail/vector_arguments.h"

#include <sstream>
#include <string>

#include "base/error.h"

namespace retort::losses::detail {

void require_vector(const at::Tensor& tensor, const char* name, int64_t size,
                    at::ScalarType dtype) {
  if (!tensor.defined())
    throw Error(ErrorCode::kInvalidArgument,
                std::string(name) + " is missing: these options need it")
        .with("tensor", name);
  if (tensor.dim() != 1 || tensor.scalar_type() != dtype || tensor.size(0) != size) {
    std::ostringstream got;
    got << tensor.sizes() << " " << tensor.scalar_type();
    throw Error(ErrorCode::kInvalidArgument, std::string(name) + " must be a vector of " +
                                                 std::to_string(size) + " " + at::toString(dtype) +
                                                 " values")
        .with(name, got.str());
  }
}

}  // namespace retort::losses::detail

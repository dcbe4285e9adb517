// KServe v2's binary tensor extension: tensors as raw bytes behind a JSON header.
//
//   POST v2/models/M/infer                       HTTP/1.1 200
//   Inference-Header-Content-Length: 151         Inference-Header-Content-Length: 244
//
//   {"inputs": [...], "outputs": [...]}          {"model_name": ..., "outputs": [...]}
//   <bytes of inputs[0]><bytes of inputs[1]>     <bytes of outputs[0]><bytes of outputs[1]>
//
// Bytes are little-endian, tensors whole and one behind the other, in the order of the header.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "http/message.h"

namespace retort::engines::kserve {

inline constexpr std::string_view kHeaderLength = "Inference-Header-Content-Length";

// A tensor as a header names it.
struct TensorSpec {
  std::string name;
  std::string datatype;  // "INT32", "FP32", "FP16", "BF16"
  std::vector<int64_t> shape;

  // The bytes that its numbers take. kInvalidArgument for a datatype that is none of the four, or a
  // shape that is not a whole one.
  uint64_t bytes() const;
};

// Our dtype for one of the four datatypes; kInvalidArgument for others.
at::ScalarType dtype_of(std::string_view datatype);

// int32 [n], sent from where it lies.
struct Int32Input {
  std::string name;
  std::shared_ptr<const std::vector<int32_t>> values;
};

struct InferQuestion {
  std::string id;     // comes back with the answer
  std::string model;  // the name at the server
  std::vector<Int32Input> inputs;
  std::vector<TensorSpec> outputs;  // the shapes that the answer must have
};

// The body and headers of `question` in a request without address and limits of time; its limit of
// the answer is answer_limit(). Nothing is copied: the pieces share the inputs.
http::Request infer_request(const InferQuestion& question);

// The most bytes that an answer may have: those of the outputs by their shapes, and
// kHeaderBytes + kHeaderBytesOfTensor a tensor for its header.
inline constexpr uint64_t kHeaderBytes = 4096;
inline constexpr uint64_t kHeaderBytesOfTensor = 1024;
uint64_t answer_limit(const InferQuestion& question);

// The outputs of `question` by name, as the server filled them: numbers are not looked at.
// Memory: the body is held once; the tensors lie in it, which they keep alive.
// Errors: kCorrupt for what cannot be an answer (no JSON, sizes that disagree, bytes too many or
//   too few); kMismatch for an answer to something else (another id or model, tensors, datatypes,
//   shapes; no binary tensors). The message names the field.
std::map<std::string, at::Tensor> read_infer_answer(const InferQuestion& question,
                                                    http::Response response);

}  // namespace retort::engines::kserve

// Decodes: an answer with binary tensors (engines/kserve/binary_tensors.h). The first two bytes say
//   how long its JSON header claims to be.
// Holds: what is taken has the tensors that were asked for, whole, at addresses where their numbers
//   may lie; as many bytes as came are theirs.
#include <cstdint>

#include "engines/kserve/binary_tensors.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/target_list.h"

namespace retort::fuzz::kserve_answer {
namespace {

using engines::kserve::InferQuestion;

// Of two bytes a number first, so that what follows has to move.
InferQuestion question() {
  return {.id = "7",
          .model = "m",
          .outputs = {{"h", "BF16", {1, 3}}, {"i", "INT32", {1, 2}}, {"p", "FP32", {2}}}};
}

bool decode(std::string_view bytes) {
  ByteSource source(bytes);
  const auto header_bytes = source.number<uint16_t>();
  http::Response response{.status = 200, .body = std::string(source.rest())};
  response.headers.push_back(
      {std::string(engines::kserve::kHeaderLength), std::to_string(header_bytes)});
  const size_t all = response.body.size();
  const auto tensors = engines::kserve::read_infer_answer(question(), std::move(response));

  size_t used = header_bytes;
  expect(tensors.size() == question().outputs.size(), "another number of tensors");
  for (const auto& spec : question().outputs) {
    const at::Tensor& tensor = tensors.at(spec.name);
    expect(tensor.sizes() == at::IntArrayRef(spec.shape), "another shape");
    expect(tensor.nbytes() == spec.bytes(), "another size");
    const auto address = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
    expect(address % tensor.itemsize() == 0, "numbers where none may lie");
    used += tensor.nbytes();
    // Every byte can be read.
    const auto* data = static_cast<const uint8_t*>(tensor.const_data_ptr());
    uint64_t sum = 0;
    for (size_t i = 0; i < tensor.nbytes(); ++i)
      sum += data[i];
    expect(sum <= tensor.nbytes() * 255, "bytes above 255");
  }
  expect(used == all, "bytes that belong to nothing");
  return true;
}

std::string entry(const std::string& name, const std::string& datatype, const std::string& shape,
                  int bytes) {
  return R"({"name":")" + name + R"(","datatype":")" + datatype + R"(","shape":)" + shape +
         R"(,"parameters":{"binary_data_size":)" + std::to_string(bytes) + "}}";
}

std::vector<Seed> seeds() {
  const std::string h = entry("h", "BF16", "[1,3]", 6);
  const std::string i = entry("i", "INT32", "[1,2]", 8);
  const std::string p = entry("p", "FP32", "[2]", 8);
  const auto seed = [](const std::string& entries) {
    const std::string header =
        R"({"id":"7","model_name":"m","model_version":"1","outputs":[)" + entries + "]}";
    return ByteSink()
        .number(static_cast<uint16_t>(header.size()))
        .raw(header)
        .raw("0123456789abcdefghijkl")
        .bytes();
  };
  return {{"in_order", seed(h + "," + i + "," + p)}, {"other_order", seed(p + "," + h + "," + i)}};
}

}  // namespace

Target target() { return {"kserve_answer", decode, seeds}; }

}  // namespace retort::fuzz::kserve_answer

#include "engines/kserve/binary_tensors.h"

#include <ATen/ops/from_blob.h>

#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "engines/kserve/json_fields.h"

namespace retort::engines::kserve {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are sent as they lie in memory");

// Each tensor begins at a multiple of this. It is more than any of our datatypes needs, and less
// than what a tensor's entry in the header takes, so that moving the tensors forward never
// overtakes their bytes.
constexpr size_t kAlignment = 8;

struct Datatype {
  std::string_view name;
  at::ScalarType dtype;
  uint64_t bytes;
};
constexpr std::array<Datatype, 4> kDatatypes{{{"INT32", at::kInt, 4},
                                              {"FP32", at::kFloat, 4},
                                              {"FP16", at::kHalf, 2},
                                              {"BF16", at::kBFloat16, 2}}};

const Datatype& find_datatype(std::string_view name) {
  for (const Datatype& datatype : kDatatypes)
    if (datatype.name == name) return datatype;
  throw Error(ErrorCode::kInvalidArgument,
              "datatype " + std::string(name) + "; expected INT32, FP32, FP16 or BF16");
}

std::string input_header(const InferQuestion& question) {
  Json header{{"id", question.id}, {"inputs", Json::array()}, {"outputs", Json::array()}};
  for (const Int32Input& input : question.inputs) {
    const size_t count = input.values->size();
    header["inputs"].push_back({{"name", input.name},
                                {"shape", {count}},
                                {"datatype", "INT32"},
                                {"parameters", {{"binary_data_size", count * sizeof(int32_t)}}}});
  }
  for (const TensorSpec& output : question.outputs)
    header["outputs"].push_back({{"name", output.name}, {"parameters", {{"binary_data", true}}}});
  return header.dump();
}

// Returns how long the JSON at the front of the body is.
size_t header_bytes(const http::Response& response) {
  const std::string* text = http::find_header(response.headers, kHeaderLength);
  if (text == nullptr)
    throw Error(ErrorCode::kMismatch, "the answer has no header " + std::string(kHeaderLength) +
                                          ": the server does not send binary tensors");
  size_t bytes = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), bytes);
  if (error != std::errc() || end != text->data() + text->size() || bytes > response.body.size())
    throw Error(ErrorCode::kCorrupt,
                std::string(kHeaderLength) + " is " + in_quotes(*text) + "; expected at most the " +
                    std::to_string(response.body.size()) + " bytes of the body");
  return bytes;
}

const TensorSpec& expected_output(const InferQuestion& question, const std::string& name) {
  for (const TensorSpec& spec : question.outputs)
    if (spec.name == name) return spec;
  throw Error(ErrorCode::kMismatch, "outputs has " + in_quotes(name) + ", which nobody asked for");
}

// An entry of "outputs" is `spec`, whose bytes follow the header.
void check_entry(const Json& entry, const TensorSpec& spec) {
  const std::string field = "output " + in_quotes(spec.name);
  const std::string datatype = text_field(entry, "datatype", field);
  if (datatype != spec.datatype)
    throw Error(ErrorCode::kMismatch,
                field + ": datatype is " + in_quotes(datatype) + "; expected " + spec.datatype);

  // The shape was known when the question was asked, so another one is an error and nothing is
  // allocated for it.
  const std::vector<int64_t> shape = shape_field(entry, field);
  if (shape != spec.shape)
    throw Error(ErrorCode::kMismatch,
                field + ": shape is " + shape_text(shape) + "; expected " + shape_text(spec.shape));

  const auto parameters = entry.find("parameters");
  if (parameters == entry.end() || !parameters->is_object() ||
      !parameters->contains("binary_data_size"))
    throw Error(ErrorCode::kMismatch,
                field +
                    ": has no parameters.binary_data_size: the server does not send it as "
                    "binary data");
  const Json& size = (*parameters)["binary_data_size"];
  if (!size.is_number_unsigned() || size.get<uint64_t>() != spec.bytes())
    throw Error(ErrorCode::kCorrupt, field + ": binary_data_size is " + shown(size) +
                                         "; its shape " + shape_text(shape) + " of " + datatype +
                                         " has " + std::to_string(spec.bytes()) + " bytes");
}

// Returns the outputs in the order of their bytes. The server chooses that order, so each must be
// there once and none twice.
std::vector<const TensorSpec*> read_entries(const InferQuestion& question, const Json& header) {
  std::vector<const TensorSpec*> order;
  for (const Json& entry : list_field(header, "outputs", "answer")) {
    const TensorSpec& spec = expected_output(question, text_field(entry, "name", "an output"));
    for (const TensorSpec* earlier : order)
      if (earlier == &spec)
        throw Error(ErrorCode::kCorrupt, "outputs has " + in_quotes(spec.name) + " twice");
    check_entry(entry, spec);
    order.push_back(&spec);
  }

  for (const TensorSpec& spec : question.outputs) {
    bool there = false;
    for (const TensorSpec* one : order)
      there = there || one == &spec;
    if (!there)
      throw Error(ErrorCode::kMismatch,
                  "outputs lacks " + in_quotes(spec.name) + "; see the model");
  }
  return order;
}

void check_label(const InferQuestion& question, const Json& header) {
  const std::string model = text_field(header, "model_name", "answer");
  if (model != question.model)
    throw Error(ErrorCode::kMismatch,
                "model_name is " + in_quotes(model) + "; asked was " + in_quotes(question.model));
  const std::string id = text_field(header, "id", "answer");
  if (id != question.id)
    throw Error(ErrorCode::kMismatch, "id is " + in_quotes(id) + "; the request's is " +
                                          in_quotes(question.id) +
                                          ": an answer to another question");
}

// Moves the tensors of `body`, the first of which begins at `source`, to where numbers may lie: to
// the front, over the header, which has been read and is longer than what that takes.
std::map<std::string, at::Tensor> tensors_in(std::shared_ptr<std::string> body, size_t source,
                                             const std::vector<const TensorSpec*>& order) {
  std::map<std::string, at::Tensor> tensors;
  size_t target = 0;
  for (const TensorSpec* spec : order) {
    const size_t bytes = spec->bytes();
    RETORT_CHECK(target <= source) << "a header shorter than its tensors' alignment";
    char* const at = body->data() + target;
    std::memmove(at, body->data() + source, bytes);
    tensors.emplace(spec->name, at::from_blob(
                                    at, spec->shape, [body](void*) {}, dtype_of(spec->datatype)));
    source += bytes;
    target += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  return tensors;
}

}  // namespace

at::ScalarType dtype_of(std::string_view datatype) { return find_datatype(datatype).dtype; }

uint64_t TensorSpec::bytes() const {
  constexpr uint64_t kMost = uint64_t{1} << 62;
  uint64_t all = find_datatype(datatype).bytes;
  for (const int64_t size : shape) {
    if (size < 0 || (size > 0 && all > kMost / static_cast<uint64_t>(size)))
      throw Error(ErrorCode::kInvalidArgument, name + ": shape " + shape_text(shape));
    all *= static_cast<uint64_t>(size);
  }
  return all;
}

uint64_t answer_limit(const InferQuestion& question) {
  uint64_t bytes = kHeaderBytes;
  for (const TensorSpec& output : question.outputs)
    bytes += kHeaderBytesOfTensor + output.bytes();
  return bytes;
}

http::Request infer_request(const InferQuestion& question) {
  http::Request request;
  // The body is the JSON header and then the inputs' bytes, which are sent from where they lie.
  std::string header = input_header(question);
  request.headers.push_back({std::string(kHeaderLength), std::to_string(header.size())});
  request.content_type = "application/octet-stream";
  request.expected_type = "application/octet-stream";
  request.body.push_back(http::piece_of(std::move(header)));
  for (const Int32Input& input : question.inputs) {
    const auto* bytes = reinterpret_cast<const char*>(input.values->data());
    request.body.push_back(
        {.bytes = {bytes, input.values->size() * sizeof(int32_t)}, .owner = input.values});
  }

  request.limits.body_bytes = answer_limit(question);
  request.limits.body_advice =
      "it has more than the tensors that were asked for; see what the model gives";
  return request;
}

std::map<std::string, at::Tensor> read_infer_answer(const InferQuestion& question,
                                                    http::Response response) {
  const size_t source = header_bytes(response);
  const Json header = parse_json(std::string_view(response.body).substr(0, source));
  check_label(question, header);
  const std::vector<const TensorSpec*> order = read_entries(question, header);

  uint64_t bytes = 0;
  for (const TensorSpec* spec : order)
    bytes += spec->bytes();
  // The sizes of all outputs are checked against the body before one of them is moved, which writes
  // over the header.
  if (response.body.size() - source != bytes)
    throw Error(ErrorCode::kCorrupt,
                "the answer has " + std::to_string(response.body.size() - source) +
                    " bytes behind its header; its outputs have " + std::to_string(bytes));
  return tensors_in(std::make_shared<std::string>(std::move(response.body)), source, order);
}

}  // namespace retort::engines::kserve

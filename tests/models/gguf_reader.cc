#include "tests/models/gguf_reader.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/file.h"

namespace retort::models {
namespace {

class Bytes {
 public:
  explicit Bytes(std::string text) : text_(std::move(text)) {}

  template <class T>
  T number() {
    T value{};
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string string() { return take(number<uint64_t>()); }

  std::string take(uint64_t count) {
    if (count > text_.size() - at_) throw std::runtime_error("the GGUF file is too short");
    at_ += count;
    return text_.substr(at_ - count, count);
  }
  uint64_t position() const { return at_; }
  uint64_t size() const { return text_.size(); }

 private:
  std::string text_;
  uint64_t at_ = 0;
};

template <class T, class Read>
std::vector<T> read_list(Bytes& bytes, Read&& read) {
  std::vector<T> list(bytes.number<uint64_t>());
  for (T& value : list)
    value = read();
  return list;
}

GgufFile::Value read_value(Bytes& bytes) {
  switch (bytes.number<uint32_t>()) {
    case 4: return bytes.number<uint32_t>();
    case 6: return bytes.number<float>();
    case 7: return bytes.number<uint8_t>() != 0;
    case 8: return bytes.string();
    case 9:
      if (bytes.number<uint32_t>() == 8)
        return read_list<std::string>(bytes, [&] { return bytes.string(); });
      return read_list<int32_t>(bytes, [&] { return bytes.number<int32_t>(); });
    default: throw std::runtime_error("a value of a type that this test does not know");
  }
}

uint64_t num_bytes(const GgufFile::Tensor& tensor) {
  uint64_t count = 1;
  for (const int64_t size : tensor.sizes)
    count *= static_cast<uint64_t>(size);
  if (tensor.type == 8) return count / 32 * 34;
  return count * (tensor.type == 0 ? 4 : 2);
}

}  // namespace

GgufFile::GgufFile(const std::filesystem::path& path) {
  Bytes bytes(read_file(path));
  EXPECT_EQ(bytes.take(4), "GGUF");
  EXPECT_EQ(bytes.number<uint32_t>(), 3u);
  const auto num_tensors = bytes.number<uint64_t>();
  const auto num_values = bytes.number<uint64_t>();

  // Metadata.
  for (uint64_t i = 0; i < num_values; ++i) {
    const std::string key = bytes.string();
    EXPECT_TRUE(values.emplace(key, read_value(bytes)).second) << key << " stands there twice";
  }

  // What there is of tensors.
  std::vector<uint64_t> offsets;
  for (uint64_t i = 0; i < num_tensors; ++i) {
    names.push_back(bytes.string());
    Tensor& tensor = tensors[names.back()];
    tensor.sizes.resize(bytes.number<uint32_t>());
    for (int64_t& size : tensor.sizes)
      size = static_cast<int64_t>(bytes.number<uint64_t>());
    tensor.type = bytes.number<uint32_t>();
    offsets.push_back(bytes.number<uint64_t>());
  }
  EXPECT_EQ(tensors.size(), num_tensors);

  // Their numbers, each after the other, padded with zeros.
  const auto pad = [&] {
    while (bytes.position() % 32 != 0)
      EXPECT_EQ(bytes.take(1), std::string(1, '\0'));
  };
  pad();
  const uint64_t begin = bytes.position();
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(bytes.position() - begin, offsets[i]) << names[i];
    Tensor& tensor = tensors[names[i]];
    tensor.bytes = bytes.take(num_bytes(tensor));
    pad();
  }
  EXPECT_EQ(bytes.position(), bytes.size());
}

}  // namespace retort::models

#include "models/gguf/gguf_writer.h"

#include <bit>
#include <utility>

#include "base/error.h"

namespace retort::models {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is written as memory has it");

constexpr std::string_view kMagic = "GGUF";
constexpr uint32_t kVersion = 3;
constexpr uint64_t kAlignment = 32;  // the format's default

// These are the numbers of the format for the types of values.
enum class ValueType : uint32_t {
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
};

template <class T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void append_string(std::string& bytes, std::string_view text) {
  append(bytes, static_cast<uint64_t>(text.size()));
  bytes += text;
}

void append_key(std::string& bytes, std::string_view key, ValueType type) {
  append_string(bytes, key);
  append(bytes, type);
}

uint64_t aligned(uint64_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

// Returns everything before the data of the tensors, without the padding after it.
std::string head(const GgufMetadata& metadata, const std::vector<GgufTensor>& tensors) {
  std::string bytes(kMagic);
  append(bytes, kVersion);
  append(bytes, static_cast<uint64_t>(tensors.size()));
  append(bytes, metadata.count());
  bytes += metadata.bytes();

  // Offsets count from the beginning of the data.
  uint64_t offset = 0;
  for (const GgufTensor& tensor : tensors) {
    append_string(bytes, tensor.name);
    append(bytes, static_cast<uint32_t>(tensor.shape.size()));
    for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size)
      append(bytes, static_cast<uint64_t>(*size));
    append(bytes, tensor.type);
    append(bytes, offset);
    offset += aligned(tensor.num_bytes());
  }
  return bytes;
}

}  // namespace

void GgufMetadata::add(std::string_view key, uint32_t value) {
  append_key(bytes_, key, ValueType::kUint32);
  append(bytes_, value);
  ++count_;
}

void GgufMetadata::add(std::string_view key, float value) {
  append_key(bytes_, key, ValueType::kFloat32);
  append(bytes_, value);
  ++count_;
}

void GgufMetadata::add(std::string_view key, bool value) {
  append_key(bytes_, key, ValueType::kBool);
  append(bytes_, static_cast<uint8_t>(value));
  ++count_;
}

void GgufMetadata::add(std::string_view key, std::string_view value) {
  append_key(bytes_, key, ValueType::kString);
  append_string(bytes_, value);
  ++count_;
}

void GgufMetadata::add(std::string_view key, std::span<const std::string> values) {
  append_key(bytes_, key, ValueType::kArray);
  append(bytes_, ValueType::kString);
  append(bytes_, static_cast<uint64_t>(values.size()));
  for (const std::string& value : values)
    append_string(bytes_, value);
  ++count_;
}

void GgufMetadata::add(std::string_view key, std::span<const int32_t> values) {
  append_key(bytes_, key, ValueType::kArray);
  append(bytes_, ValueType::kInt32);
  append(bytes_, static_cast<uint64_t>(values.size()));
  for (const int32_t value : values)
    append(bytes_, value);
  ++count_;
}

uint64_t GgufTensor::num_bytes() const {
  uint64_t count = 1;
  for (const int64_t size : shape)
    count *= static_cast<uint64_t>(size);
  switch (type) {
    case GgufType::kF32: return count * 4;
    case GgufType::kF16:
    case GgufType::kBF16: return count * 2;
    case GgufType::kQ8_0: return count / kQ8BlockSize * kQ8BlockBytes;
  }
  return 0;
}

GgufWriter::GgufWriter(const std::filesystem::path& path, const GgufMetadata& metadata,
                       std::vector<GgufTensor> tensors)
    : file_(path), tensors_(std::move(tensors)) {
  file_.write(head(metadata, tensors_));
  pad();
}

void GgufWriter::write(const std::string& name, std::span<const std::byte> bytes) {
  RETORT_CHECK(next_ < tensors_.size() && tensors_[next_].name == name)
      << "tensor '" << name << "' is written out of order";
  RETORT_CHECK(bytes.size() == tensors_[next_].num_bytes())
      << "tensor '" << name << "' has " << bytes.size() << " bytes, expected "
      << tensors_[next_].num_bytes();
  file_.write(bytes);
  pad();
  ++next_;
}

void GgufWriter::commit() {
  RETORT_CHECK(next_ == tensors_.size())
      << "only " << next_ << " of " << tensors_.size() << " tensors were written";
  file_.commit();
}

void GgufWriter::pad() {
  const uint64_t size = file_.size_bytes();
  file_.write(std::string(aligned(size) - size, '\0'));
}

}  // namespace retort::models

#include "tests/fuzz/mutations.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <random>

namespace retort::fuzz {
namespace {

constexpr size_t kMostAdded = 16;  // by one change
constexpr std::array<uint64_t, 12> kExtremes{0,
                                             1,
                                             0x7f,
                                             0xff,
                                             0x7fff,
                                             0xffff,
                                             0x7fffffff,
                                             0xffffffff,
                                             uint64_t{1} << 40,
                                             std::numeric_limits<int64_t>::max(),
                                             uint64_t{1} << 63,
                                             std::numeric_limits<uint64_t>::max()};

class Mutation {
 public:
  Mutation(std::string_view bytes, std::string_view other, uint64_t seed)
      : bytes_(bytes), other_(other), random_(seed) {}

  std::string make() {
    const size_t changes = 1 + below(4);
    for (size_t i = 0; i < changes; ++i)
      change();
    return std::move(bytes_);
  }

 private:
  // std's distributions differ between libraries; the small bias does not matter.
  size_t below(size_t limit) { return limit == 0 ? 0 : random_() % limit; }

  void change() {
    const size_t at = below(bytes_.size() + 1);
    const size_t left = bytes_.size() - at;
    switch (below(7)) {
      case 0:
        if (left > 0) bytes_[at] = static_cast<char>(bytes_[at] ^ 1 << below(8));
        break;
      case 1:
        if (left > 0) bytes_[at] = static_cast<char>(random_());
        break;
      case 2: overwrite(at, kExtremes[below(kExtremes.size())], size_t{1} << below(4)); break;
      case 3: bytes_.erase(at, 1 + below(kMostAdded)); break;
      case 4: bytes_.insert(at, std::string(bytes_.substr(at, 1 + below(kMostAdded)))); break;
      case 5: bytes_.insert(at, other_.substr(below(other_.size()), 1 + below(kMostAdded))); break;
      case 6: bytes_.resize(at); break;
    }
  }

  void overwrite(size_t at, uint64_t value, size_t width) {
    std::memcpy(bytes_.data() + at, &value, std::min(width, bytes_.size() - at));
  }

  std::string bytes_;
  const std::string_view other_;
  std::mt19937_64 random_;
};

}  // namespace

std::string mutated(std::string_view bytes, std::string_view other, uint64_t seed) {
  return Mutation(bytes, other, seed).make();
}

}  // namespace retort::fuzz

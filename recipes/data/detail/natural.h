// Natural numbers of any size, for comparing fractions by cross multiplication.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace retort::data::detail {

// Nothing is divided: two fractions are equal if their cross products are. Callers bound the size
// (num_limbs), since the cost of a product is that of its limbs.
class Natural {
 public:
  Natural() = default;  // 0
  explicit Natural(uint32_t value);
  // `digits` must be decimal digits alone.
  static Natural from_digits(std::string_view digits);

  bool is_zero() const { return limbs_.empty(); }
  bool is_one() const { return limbs_.size() == 1 && limbs_[0] == 1; }
  // of 32 bits
  size_t num_limbs() const { return limbs_.size(); }
  // The value, which must be below 2^32.
  uint32_t small() const { return limbs_.empty() ? 0 : limbs_[0]; }

  Natural operator*(const Natural& other) const;
  Natural operator+(const Natural& other) const;
  bool operator==(const Natural& other) const = default;

 private:
  // this = this * factor + addend
  void multiply_add(uint32_t factor, uint32_t addend);

  std::vector<uint32_t> limbs_;  // the lowest first; the last is not 0
};

}  // namespace retort::data::detail

#include "recipes/data/detail/natural.h"

#include <algorithm>

namespace retort::data::detail {

Natural::Natural(uint32_t value) {
  if (value != 0) limbs_.push_back(value);
}

Natural Natural::from_digits(std::string_view digits) {
  Natural result;
  for (const char digit : digits)
    result.multiply_add(10, static_cast<uint32_t>(digit - '0'));
  return result;
}

void Natural::multiply_add(uint32_t factor, uint32_t addend) {
  uint64_t carry = addend;
  for (uint32_t& limb : limbs_) {
    carry += uint64_t{limb} * factor;
    limb = static_cast<uint32_t>(carry);
    carry >>= 32;
  }
  if (carry != 0) limbs_.push_back(static_cast<uint32_t>(carry));
}

Natural Natural::operator*(const Natural& other) const {
  Natural result;
  if (is_zero() || other.is_zero()) return result;
  result.limbs_.assign(limbs_.size() + other.limbs_.size(), 0);
  for (size_t i = 0; i < limbs_.size(); ++i) {
    uint64_t carry = 0;
    for (size_t j = 0; j < other.limbs_.size(); ++j) {
      carry += uint64_t{limbs_[i]} * other.limbs_[j] + result.limbs_[i + j];
      result.limbs_[i + j] = static_cast<uint32_t>(carry);
      carry >>= 32;
    }
    result.limbs_[i + other.limbs_.size()] = static_cast<uint32_t>(carry);
  }
  if (result.limbs_.back() == 0) result.limbs_.pop_back();
  return result;
}

Natural Natural::operator+(const Natural& other) const {
  Natural result;
  uint64_t carry = 0;
  const size_t size = std::max(limbs_.size(), other.limbs_.size());
  for (size_t i = 0; i < size; ++i) {
    carry += i < limbs_.size() ? limbs_[i] : 0;
    carry += i < other.limbs_.size() ? other.limbs_[i] : 0;
    result.limbs_.push_back(static_cast<uint32_t>(carry));
    carry >>= 32;
  }
  if (carry != 0) result.limbs_.push_back(static_cast<uint32_t>(carry));
  return result;
}

}  // namespace retort::data::detail

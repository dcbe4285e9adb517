// kernels/divergence.cuh against its formulas in float64.
#include <gtest/gtest.h>

#include "tests/kernels/kernel_check.h"

namespace retort::test::divergence {
namespace {

constexpr int64_t kRows = 3;
constexpr float kMix = 0.3f, kCeWeight = 0.4f, kKdWeight = 0.6f;
enum Type : int32_t { kForwardKl, kReverseKl, kJsd, kSkewedKl, kSkewedReverseKl, kTvd };
constexpr Type kTypes[] = {kForwardKl, kReverseKl, kJsd, kSkewedKl, kSkewedReverseKl, kTvd};

struct Case {
  int64_t student_width, teacher_width, common;
  float student_scale = 1, teacher_scale = 1;
};

struct Rows {
  std::vector<float> student, teacher;
  std::vector<int64_t> targets;
};

// The student is near the teacher. In the second row some columns are drawn by neither, and where
// the divergence allows it by one of the two.
Rows rows_of(const Case& of, Type type) {
  Rows rows{normal(kRows * of.student_width, 1, 2), normal(kRows * of.teacher_width, 2, 2), {}};
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t i = 0; i < of.common; ++i)
      rows.student[to_size(r * of.student_width + i)] +=
          rows.teacher[to_size(r * of.teacher_width + i)];
    rows.targets.push_back(r == 0 ? of.student_width - 1 : of.student_width / (r + 1));
  }
  if (of.common < 30) return rows;
  for (int64_t i = 0; i < 10; ++i) {
    rows.teacher[to_size(of.teacher_width + i)] = type == kReverseKl && i < 5 ? 0 : -kInfinity;
    rows.student[to_size(of.student_width + i)] = type == kForwardKl || i < 5 ? -kInfinity : 1;
    if (type == kReverseKl) rows.student[to_size(of.student_width + i)] = -kInfinity;
  }
  return rows;
}

double log_ratio(double a, double b) { return a == 0 ? 0 : std::log(a / b); }

// The part of one column, and its derivative by p.
struct Part {
  double value, slope;
};
Part part_of(Type type, double p, double q) {
  const double mix = kMix;
  const double m = type == kSkewedReverseKl ? q + mix * (p - q) : p + mix * (q - p);
  switch (type) {
    case kForwardKl: return {q * log_ratio(q, p), p == 0 ? 0 : -q / p};
    case kReverseKl: return {p * log_ratio(p, q), p == 0 ? 0 : std::log(p / q) + 1};
    case kJsd:
      return {mix * q * log_ratio(q, m) + (1 - mix) * p * log_ratio(p, m),
              (1 - mix) * log_ratio(p, m)};
    case kSkewedKl: return {q * log_ratio(q, m), q == 0 ? 0 : -(1 - mix) * q / m};
    case kSkewedReverseKl:
      return {p * log_ratio(p, m), p == 0 ? 0 : std::log(p / m) + 1 - mix * p / m};
    default: return {0.5 * std::abs(p - q), p > q ? 0.5 : (p < q ? -0.5 : 0)};
  }
}

struct Expected {
  double divergence = 0, log_prob, entropy, correct, masked = 0;
  std::vector<double> gradient;
};

Expected expected_of(const Case& of, Type type, const Rows& rows, int64_t r) {
  const float* student = rows.student.data() + r * of.student_width;
  const float* teacher = rows.teacher.data() + r * of.teacher_width;
  const int64_t target = rows.targets[to_size(r)];
  const SoftmaxRow p(student, of.common, of.student_scale), q(teacher, of.common, of.teacher_scale);
  const SoftmaxRow ce(student, of.student_width), all(teacher, of.teacher_width, of.teacher_scale);
  Expected expected{.log_prob = student[target] - ce.max - ce.log_sum,
                    .entropy = ce.entropy,
                    .correct = ce.first == target ? 1.0 : 0.0};
  for (int64_t i = of.common; i < of.teacher_width; ++i)
    expected.masked += all.p[to_size(i)];

  std::vector<Part> parts;
  double mean = 0;
  for (int64_t i = 0; i < of.common; ++i) {
    parts.push_back(part_of(type, p.p[to_size(i)], q.p[to_size(i)]));
    expected.divergence += parts.back().value;
    mean += p.p[to_size(i)] * parts.back().slope;
  }
  for (int64_t i = 0; i < of.student_width; ++i) {
    double gradient = kCeWeight * (ce.p[to_size(i)] - (i == target ? 1 : 0));
    if (i < of.common) gradient += kKdWeight * p.p[to_size(i)] * (parts[to_size(i)].slope - mean);
    expected.gradient.push_back(gradient);
  }
  return expected;
}

template <class T>
void expect_row(const Case& of, Type type, const Expected& expected, const float* row) {
  const T* got = reinterpret_cast<const T*>(row);
  for (int64_t i = 0; i < of.student_width; ++i)
    ASSERT_TRUE(is_close(widen(got[i]), expected.gradient[to_size(i)], 3e-6, 3 * kRounding<T>))
        << "type " << type << " width " << of.student_width << " column " << i << ": "
        << widen(got[i]) << ", not " << expected.gradient[to_size(i)];
}

template <class T>
void check(const Case& of, Type type) {
  const Rows rows = rows_of(of, type);
  const auto [got, numbers] = run_in_orders(
      [&](EmulatedKernels& kernels, auto& student, auto& to) {
        launch(kernels, kernel_of<T>("divergence_rows"), {.grid_x = kRows, .block = 64},
               student.data(), of.student_width, rows.teacher.data(), of.teacher_width, of.common,
               rows.targets.data(), int32_t{type}, kMix, of.student_scale, of.teacher_scale,
               kCeWeight, kKdWeight, int32_t{1}, kRows, to.data());
      },
      rows.student, poisoned<double>(7 * kRows));
  for (int64_t r = 0; r < kRows; ++r) {
    const Expected expected = expected_of(of, type, rows, r);
    const auto number = [&](int64_t n) { return numbers[to_size(n * kRows + r)]; };
    EXPECT_TRUE(is_close(number(0), expected.divergence, 2e-6, 3e-6))
        << "type " << type << ": " << number(0) << ", not " << expected.divergence;
    EXPECT_TRUE(is_close(number(1), expected.log_prob, 1e-5, 2e-6));
    EXPECT_NEAR(number(2), expected.entropy, 1e-5);
    EXPECT_EQ(number(3), expected.correct);
    EXPECT_TRUE(is_close(number(4), expected.masked, 1e-7, 1e-5));
    expect_row<T>(of, type, expected, got.data() + r * of.student_width);
  }
}

TEST(DivergenceKernel, WholeVocabularies) {
  for (const Type type : kTypes) {
    for (const int64_t width : {1, 2, 31, 33, 128})
      check<float>({width, width, width}, type);
    check<Bf16>({1001, 1001, 1001}, type);
    check<float>({2048, 2048, 2048, 0.5f, 0.5f}, type);
  }
}

TEST(DivergenceKernel, ColumnsThatOneSideHasAlone) {
  for (const Type type : kTypes) {
    check<Bf16>({1200, 1300, 1100}, type);
    check<float>({301, 1500, 301, 1, 0.5f}, type);
    check<float>({1500, 301, 300, 2, 1}, type);
  }
}

TEST(DivergenceKernel, NumbersAloneLeaveTheLogits) {
  const Case of{132, 132, 132};
  const Rows rows = rows_of(of, kJsd);
  const auto [student, numbers] = run_in_orders(
      [&](EmulatedKernels& kernels, auto& x, auto& to) {
        launch(kernels, "retort_divergence_rows_f32", {.grid_x = kRows, .block = 32}, x.data(),
               int64_t{132}, rows.teacher.data(), int64_t{132}, int64_t{132}, rows.targets.data(),
               int32_t{kJsd}, kMix, 1.0f, 1.0f, 0.5f, 0.5f, int32_t{0}, kRows, to.data());
      },
      rows.student, poisoned<double>(7 * kRows));
  EXPECT_TRUE(same_bits(student, rows.student));
  EXPECT_NEAR(numbers[0], expected_of(of, kJsd, rows, 0).divergence, 1e-6);
}

TEST(DivergenceKernel, NanSpoilsItsRowAlone) {
  const Case of{132, 132, 132};
  for (const Type type : kTypes) {
    Rows rows = rows_of(of, type);
    rows.teacher[132 + 40] = kNan;
    const auto [student, numbers] = run_in_orders(
        [&](EmulatedKernels& kernels, auto& x, auto& to) {
          launch(kernels, "retort_divergence_rows_bf16", {.grid_x = kRows, .block = 32}, x.data(),
                 int64_t{132}, rows.teacher.data(), int64_t{132}, int64_t{132}, rows.targets.data(),
                 int32_t{type}, kMix, 1.0f, 1.0f, 0.0f, 1.0f, int32_t{1}, kRows, to.data());
        },
        rows.student, poisoned<double>(7 * kRows));
    for (size_t r = 0; r < to_size(kRows); ++r)
      EXPECT_EQ(std::isnan(numbers[r]), r == 1) << type;
  }
}

// One rank with all columns: the statistics are joined already, up to the sums.
template <class T>
void check_parts(int64_t width, Type type) {
  const Case of{width, width, width};
  const Rows rows = rows_of(of, type);
  const Launch shape{.grid_x = kRows, .block = 64};
  const auto [student, statistics, sums] = run_in_orders(
      [&](EmulatedKernels& kernels, auto& x, auto& all, auto& both) {
        launch(kernels, "retort_divergence_rows_statistics", shape, x.data(), width,
               rows.teacher.data(), width, width, rows.targets.data(), int64_t{0}, int32_t{type},
               1.0f, 1.0f, kRows, all.data());
        launch(kernels, "retort_divergence_rows_sums", shape, x.data(), width, rows.teacher.data(),
               width, width, rows.targets.data(), int64_t{0}, int32_t{type}, kMix, 1.0f, 1.0f,
               kRows, all.data(), both.data());
      },
      rows.student, poisoned<double>(12 * kRows), poisoned<double>(2 * kRows));

  std::vector<double> mean;
  for (int64_t r = 0; r < kRows; ++r) {
    const auto at = [&](int64_t n) { return statistics[to_size(n * kRows + r)]; };
    const double first = sums[to_size(r)], second = sums[to_size(kRows + r)];
    const double constant = std::log(at(8)) - std::log(at(1));
    const double values[] = {at(11) / at(8) - constant,
                             at(11) / at(1) + constant,
                             kMix * first + (1 - kMix) * second,
                             first,
                             first,
                             0.5 * first};
    const double means[] = {0, values[1], (1 - kMix) * second, second, second, second};
    mean.push_back(means[type]);
    EXPECT_TRUE(is_close(values[type], expected_of(of, type, rows, r).divergence, 2e-6, 3e-6))
        << type;
  }
  const double* of_rows = type == kForwardKl ? nullptr : mean.data();
  const auto [got] = run_in_orders(
      [&](EmulatedKernels& kernels, auto& x) {
        launch(kernels, kernel_of<T>("divergence_rows_gradient"), shape, x.data(), width,
               rows.teacher.data(), width, width, rows.targets.data(), int64_t{0}, int32_t{type},
               kMix, 1.0f, 1.0f, kCeWeight, kKdWeight, kRows, statistics.data(), of_rows);
      },
      rows.student);
  for (int64_t r = 0; r < kRows; ++r)
    expect_row<T>(of, type, expected_of(of, type, rows, r), got.data() + r * width);
}

TEST(DivergenceKernel, InThreeLaunches) {
  for (const Type type : kTypes) {
    check_parts<float>(301, type);
    check_parts<Bf16>(600, type);
  }
}

}  // namespace
}  // namespace retort::test::divergence

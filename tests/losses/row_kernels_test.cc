// Every instruction set's row kernels against a plain double-precision softmax, at lengths around the vector widths.
#include "recipes/losses/detail/row_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace retort::losses::detail {
namespace {

std::vector<const RowKernels*> available() {
  std::vector<const RowKernels*> found;
  for (const char* name : {"portable", "avx2", "avx512"})
    if (const RowKernels* kernels = row_kernels_named(name)) found.push_back(kernels);
  return found;
}

std::vector<float> random_row(int64_t n, uint32_t seed, float scale) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> row(n);
  for (float& x : row) x = normal(engine);
  return row;
}

std::vector<double> softmax(const std::vector<float>& row, double temperature) {
  double max = -INFINITY, sum = 0;
  for (float x : row) max = std::max(max, x / temperature);
  std::vector<double> p;
  for (float x : row) p.push_back(std::exp(x / temperature - max));
  for (double x : p) sum += x;
  for (double& x : p) x /= sum;
  return p;
}

TEST(RowKernels, PortableAlwaysExistsAndUnknownNamesDoNot) {
  EXPECT_NE(row_kernels_named("portable"), nullptr);
  EXPECT_EQ(row_kernels_named("sparc"), nullptr);
  EXPECT_NE(row_kernels().name, nullptr);
}

TEST(RowKernels, CrossEntropyAtEveryLength) {
  for (const RowKernels* kernels : available()) {
    for (int64_t n = 1; n <= 140; ++n) {
      SCOPED_TRACE(std::string(kernels->name) + " " + std::to_string(n));
      std::vector<float> row = random_row(n, static_cast<uint32_t>(n), 6);
      const std::vector<double> p = softmax(row, 1);
      const int64_t target = n / 2;
      double entropy = 0;
      for (double x : p) entropy -= x > 0 ? x * std::log(x) : 0;
      const RowResult got = kernels->cross_entropy({row.data(), n, n, target}, {.ce_weight = 0.75f, .gradient = true});
      EXPECT_NEAR(got.log_prob, std::log(p[target]), 1e-6);
      EXPECT_NEAR(got.entropy, entropy, 1e-6);
      EXPECT_EQ(got.correct, *std::max_element(p.begin(), p.end()) == p[target]);
      for (int64_t i = 0; i < n; ++i) ASSERT_NEAR(row[i], 0.75 * (p[i] - (i == target)), 3e-7 * p[i] + 1e-7);
    }
  }
}

TEST(RowKernels, ForwardKlWithMaskedIdsAndTemperature) {
  for (const RowKernels* kernels : available()) {
    for (int64_t n : {1, 2, 15, 16, 17, 33, 64, 129}) {
      SCOPED_TRACE(std::string(kernels->name) + " " + std::to_string(n));
      const int64_t vocab = n + 5, teacher_vocab = n + 9;
      const std::vector<float> student = random_row(vocab, 1, 3), teacher = random_row(teacher_vocab, 2, 3);
      const std::vector<double> p = softmax({student.begin(), student.begin() + n}, 2);
      const std::vector<double> q = softmax({teacher.begin(), teacher.begin() + n}, 2);
      const std::vector<double> whole = softmax(student, 1), all = softmax(teacher, 2);
      double kd = 0, masked = 0;
      for (int64_t i = 0; i < n; ++i) kd += q[i] * std::log(q[i] / p[i]);
      for (int64_t i = n; i < teacher_vocab; ++i) masked += all[i];
      RowLoss loss{.inv_temperature = 0.5f, .ce_weight = 0.25f, .kd_weight = 0.375f, .gradient = true};
      std::vector<float> row = student;
      const RowResult got = kernels->dense({row.data(), vocab, n, 0}, {teacher.data(), teacher_vocab, 0.5f, -1}, loss);
      EXPECT_NEAR(got.kd, kd, 1e-6);
      EXPECT_NEAR(got.masked_mass, masked, 1e-6);
      for (int64_t i = 0; i < vocab; ++i)
        ASSERT_NEAR(row[i], 0.25 * (whole[i] - (i == 0)) + (i < n ? 0.375 * (p[i] - q[i]) : 0), 2e-7) << i;
    }
  }
}

// Probabilities over 28 orders of magnitude: the relative error of exp and log shows where it would matter.
TEST(RowKernels, ExpAndLogAreAccurateFarDown) {
  for (const RowKernels* kernels : available()) {
    SCOPED_TRACE(kernels->name);
    const int64_t n = 4096;
    std::vector<float> row(n);
    for (int64_t i = 0; i < n; ++i) row[i] = -64.0f * static_cast<float>(i) / n;
    const std::vector<float> logits = row;
    const std::vector<double> p = softmax(logits, 1);
    kernels->cross_entropy({row.data(), n, n, n - 1}, {.ce_weight = 1, .gradient = true});
    for (int64_t i = 0; i + 1 < n; ++i) ASSERT_NEAR(row[i] / p[i], 1, 4e-7) << i;

    std::vector<float> flat(n, 0.0f);  // p uniform against q over the same range: every log(q / M) counts
    const std::vector<double> u(n, 1.0 / n);
    double jsd = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double m = 0.3 * p[i] + 0.7 * u[i];
      jsd += 0.3 * p[i] * std::log(p[i] / m) + 0.7 * u[i] * std::log(u[i] / m);
    }
    const RowResult got = kernels->dense({flat.data(), n, n, 0}, {logits.data(), n, 1.0f, -1}, {.type = Divergence::kJsd, .mix = 0.3f});
    EXPECT_NEAR(got.kd, jsd, 2e-7 * jsd);
  }
}

TEST(RowKernels, NonFiniteTeacherIsReportedAndNanStudentIsKept) {
  for (const RowKernels* kernels : available()) {
    for (int64_t at : {0, 17, 40}) {
      std::vector<float> row = random_row(41, 3, 2), teacher = random_row(41, 4, 2);
      row[at] = NAN;
      EXPECT_TRUE(std::isnan(kernels->cross_entropy({row.data(), 41, 41, 5}, {}).log_prob));
      row[at] = 0;
      for (float bad : {NAN, INFINITY}) {
        teacher[at] = bad;
        EXPECT_EQ(kernels->dense({row.data(), 41, 41, 5}, {teacher.data(), 41, 1.0f, -1}, {}).status, RowStatus::kTeacherNotFinite);
      }
    }
  }
}

}  // namespace
}  // namespace retort::losses::detail

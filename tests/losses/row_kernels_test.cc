// Every instruction set's row kernels against a plain double-precision softmax, at lengths around
// the vector widths.
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
  for (float& x : row)
    x = normal(engine);
  return row;
}

std::vector<double> softmax(const std::vector<float>& row, double temperature) {
  double max = -INFINITY, sum = 0;
  for (float x : row)
    max = std::max(max, x / temperature);
  std::vector<double> p;
  for (float x : row)
    p.push_back(std::exp(x / temperature - max));
  for (double x : p)
    sum += x;
  for (double& x : p)
    x /= sum;
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
      for (double x : p)
        entropy -= x > 0 ? x * std::log(x) : 0;
      const RowResult got = kernels->cross_entropy({row.data(), n, n, target},
                                                   {.ce_weight = 0.75f, .gradient = true});
      EXPECT_NEAR(got.log_prob, std::log(p[target]), 1e-6);
      EXPECT_NEAR(got.entropy, entropy, 1e-6);
      EXPECT_EQ(got.correct, *std::max_element(p.begin(), p.end()) == p[target]);
      for (int64_t i = 0; i < n; ++i)
        ASSERT_NEAR(row[i], 0.75 * (p[i] - (i == target)), 3e-7 * p[i] + 1e-7);

      // Times the target's probability.
      row = random_row(n, static_cast<uint32_t>(n), 6);
      kernels->cross_entropy({row.data(), n, n, target},
                             {.ce_weight = 0.75f, .times_probability = true, .gradient = true});
      for (int64_t i = 0; i < n; ++i)
        ASSERT_NEAR(row[i], 0.75 * p[target] * (p[i] - (i == target)), 3e-7 * p[i] + 1e-7);
    }
  }
}

TEST(RowKernels, ForwardKlWithMaskedIdsAndTemperature) {
  for (const RowKernels* kernels : available()) {
    for (int64_t n : {1, 2, 15, 16, 17, 33, 64, 129}) {
      SCOPED_TRACE(std::string(kernels->name) + " " + std::to_string(n));
      const int64_t vocab = n + 5;
      const int64_t teacher_vocab = n + 9;
      const std::vector<float> student = random_row(vocab, 1, 3);
      const std::vector<float> teacher = random_row(teacher_vocab, 2, 3);

      // The divergence and the masked mass from the definition, in double.
      const std::vector<double> p = softmax({student.begin(), student.begin() + n}, 2);
      const std::vector<double> q = softmax({teacher.begin(), teacher.begin() + n}, 2);
      const std::vector<double> whole = softmax(student, 1);
      const std::vector<double> all = softmax(teacher, 2);
      double kd = 0;
      double masked = 0;
      for (int64_t i = 0; i < n; ++i)
        kd += q[i] * std::log(q[i] / p[i]);
      for (int64_t i = n; i < teacher_vocab; ++i)
        masked += all[i];

      RowLoss loss{
          .inv_temperature = 0.5f, .ce_weight = 0.25f, .kd_weight = 0.375f, .gradient = true};
      std::vector<float> row = student;
      const RowResult got = kernels->dense({row.data(), vocab, n, 0},
                                           {teacher.data(), teacher_vocab, 0.5f, -1}, loss);
      EXPECT_NEAR(got.kd, kd, 1e-6);
      EXPECT_NEAR(got.masked_mass, masked, 1e-6);
      for (int64_t i = 0; i < vocab; ++i)
        ASSERT_NEAR(row[i], 0.25 * (whole[i] - (i == 0)) + (i < n ? 0.375 * (p[i] - q[i]) : 0),
                    2e-7)
            << i;
    }
  }
}

// Buffers of exactly the needed lengths, so that a sanitizer sees any step beyond them.
struct TopKRun {
  RowResult result;
  std::vector<float> gradient;
};
TopKRun run_top_k(const RowKernels& kernels, const std::vector<float>& student, int64_t common,
                  const std::vector<int32_t>& ids, const std::vector<float>& logps, float log_tail,
                  const RowLoss& loss) {
  const int64_t k = static_cast<int64_t>(ids.size());
  TopKRun run{.gradient = student};
  std::vector<float> coarse_s(k + 1), coarse_t(k + 1), raw(k);
  std::vector<int32_t> seen(common, -1);
  run.result = kernels.top_k({run.gradient.data(), static_cast<int64_t>(student.size()), common, 1},
                             {ids.data(), logps.data(), k, log_tail, 1e-3}, loss,
                             {coarse_s.data(), coarse_t.data(), raw.data(), seen.data(), 0});
  return run;
}

// A teacher's payload of its last k ids.
struct TopKPayload {
  std::vector<int32_t> ids;
  std::vector<float> logps;
  float log_tail = 0;
};
TopKPayload last_ids(const std::vector<double>& q, int64_t k) {
  TopKPayload payload;
  const auto common = static_cast<int64_t>(q.size());
  double rest = 0;
  for (int64_t i = 0; i < common; ++i) {
    const int64_t id = common - 1 - i;
    if (i < k) {
      payload.ids.push_back(static_cast<int32_t>(id));
      payload.logps.push_back(static_cast<float>(std::log(q[id])));
    } else {
      rest += q[id];
    }
  }
  payload.log_tail = static_cast<float>(std::log(rest));
  return payload;
}

// The six divergences, then forward KL with the two other tails.
constexpr int kTypes = 8;
RowLoss loss_of(int type) {
  return {.type = type < 6 ? static_cast<DivergenceType>(type) : DivergenceType::kForwardKl,
          .tail = type < 6 ? Tail::kBucket : static_cast<Tail>(type - 5),
          .mix = 0.3f,
          .ce_weight = 0.5f,
          .kd_weight = 2,
          .gradient = true};
}

TEST(RowKernels, EveryVariantAgreesOnTopKAndDense) {
  const RowKernels& reference = *row_kernels_named("portable");
  for (const RowKernels* kernels : available())
    for (int64_t common : {1, 7, 16, 50, 131}) {
      const std::vector<float> student = random_row(common + 6, 5, 3);
      const std::vector<float> teacher = random_row(common, 6, 3);
      for (int64_t k : {int64_t{1}, common / 2, common}) {
        if (k == 0) continue;
        const TopKPayload payload = last_ids(softmax(teacher, 1), k);
        for (int type = 0; type < kTypes; ++type) {
          SCOPED_TRACE(std::string(kernels->name) + " common " + std::to_string(common) + " k " +
                       std::to_string(k) + " type " + std::to_string(type));
          const RowLoss loss = loss_of(type);
          const auto run = [&](const RowKernels& with) {
            return run_top_k(with, student, common, payload.ids, payload.logps, payload.log_tail,
                             loss);
          };
          const TopKRun a = run(*kernels);
          const TopKRun b = run(reference);
          EXPECT_EQ(a.result.status, RowStatus::kOk);
          EXPECT_NEAR(a.result.kd, b.result.kd, 1e-6);
          EXPECT_NEAR(a.result.student_mass, b.result.student_mass, 1e-6);
          for (size_t i = 0; i < student.size(); ++i)
            ASSERT_NEAR(a.gradient[i], b.gradient[i], 2e-6) << i;

          // The whole vocabulary as top-k is the dense divergence.
          if (k < common || type >= 6) continue;
          std::vector<float> dense = student;
          const RowResult whole = kernels->dense({dense.data(), common + 6, common, 1},
                                                 {teacher.data(), common, 1.0f, -1}, loss);
          EXPECT_NEAR(a.result.kd, whole.kd, 1e-6);
          for (size_t i = 0; i < student.size(); ++i)
            ASSERT_NEAR(a.gradient[i], dense[i], 2e-6) << i;
        }
      }
    }
}

// Probabilities over 28 orders of magnitude: the relative error of exp and log shows where it would
// matter.
TEST(RowKernels, ExpAndLogAreAccurateFarDown) {
  for (const RowKernels* kernels : available()) {
    SCOPED_TRACE(kernels->name);
    const int64_t n = 4096;
    std::vector<float> row(n);
    for (int64_t i = 0; i < n; ++i)
      row[i] = -64.0f * static_cast<float>(i) / n;
    const std::vector<float> logits = row;
    const std::vector<double> p = softmax(logits, 1);
    kernels->cross_entropy({row.data(), n, n, n - 1}, {.ce_weight = 1, .gradient = true});
    for (int64_t i = 0; i + 1 < n; ++i)
      ASSERT_NEAR(row[i] / p[i], 1, 4e-7) << i;

    // p uniform against q over the same range: every log(q / M) counts
    std::vector<float> flat(n, 0.0f);
    const std::vector<double> u(n, 1.0 / n);
    double jsd = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double m = 0.3 * p[i] + 0.7 * u[i];
      jsd += 0.3 * p[i] * std::log(p[i] / m) + 0.7 * u[i] * std::log(u[i] / m);
    }
    const RowResult got = kernels->dense({flat.data(), n, n, 0}, {logits.data(), n, 1.0f, -1},
                                         {.type = DivergenceType::kJsd, .mix = 0.3f});
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
        EXPECT_EQ(
            kernels->dense({row.data(), 41, 41, 5}, {teacher.data(), 41, 1.0f, -1}, {}).status,
            RowStatus::kTeacherNotFinite);
      }
    }
  }
}

}  // namespace
}  // namespace retort::losses::detail

// Payloads on disk: what was written is found again by its content, what was damaged is not, and a
// torn record is lost alone.
#include "recipes/distill/payload_cache.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/file.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/thrown.h"

namespace retort::recipes {
namespace {
namespace fs = std::filesystem;

// Two sequences of 3 and 4 tokens, with 1 and 2 wanted rows.
std::vector<WantedSequence> two_sequences() {
  return wanted_sequences(at::tensor({5, 6, 7, 5, 6, 7, 8}, at::kInt),
                          at::tensor({0, 3, 7}, at::kInt), at::tensor({1, 4, 5}, at::kInt));
}

roles::Payload top_k_payload(int64_t rows) {
  const roles::PayloadSpec spec{.kind = roles::PayloadKind::kTopK, .top_k = 2};
  roles::Payload payload = roles::blank_payload(spec, rows, 4, 9, at::kFloat);
  payload.ids.copy_(at::rand({rows, 2}).mul(9).to(at::kInt));
  payload.logps.copy_(at::rand({rows, 2}));
  payload.log_tail.copy_(at::rand({rows}));
  payload.masked_mass_sum = 0.75;
  return payload;
}

class PayloadCacheTest : public test::FolderTest {
 protected:
  fs::path folder() const { return folder_; }
  fs::path file(int rank = 0) const {
    return folder() / "payloads" / ("rank-" + std::to_string(rank) + ".payloads");
  }
  void write(roles::Payload& payload, int rank = 0) {
    PayloadWriter writer(folder(), rank);
    for (const WantedSequence& sequence : two_sequences())
      writer.add(sequence, payload);
    writer.sync();
  }
  PayloadCache open() { return PayloadCache(folder(), payload_files(folder())); }
};

TEST_F(PayloadCacheTest, TheKeyIsTokensAndWantedPlaces) {
  const auto sequences = two_sequences();
  ASSERT_EQ(sequences.size(), 2u);
  EXPECT_EQ(sequences[0].first_row, 0);
  EXPECT_EQ(sequences[1].first_row, 1);
  EXPECT_EQ(sequences[1].num_rows, 2);
  const auto key = [](std::vector<int32_t> ids, std::vector<int32_t> places) {
    const auto length = static_cast<int32_t>(ids.size());
    return wanted_sequences(at::tensor(ids, at::kInt), at::tensor({0, length}, at::kInt),
                            at::tensor(places, at::kInt))
        .at(0)
        .key;
  };
  EXPECT_EQ(key({5, 6, 7}, {1}), sequences[0].key) << "wherever it lies in a pack";
  EXPECT_NE(key({5, 6, 7}, {0}), sequences[0].key);
  EXPECT_NE(key({5, 6, 8}, {1}), sequences[0].key);
  EXPECT_NE(key({1, 5, 6, 7}, {1}), sequences[0].key);
  EXPECT_TRUE(wanted_sequences(at::tensor({1, 2}, at::kInt), at::tensor({0, 2}, at::kInt),
                               at::tensor(std::vector<int32_t>{}, at::kInt))
                  .empty());
}

TEST_F(PayloadCacheTest, FindsWhatAnyRankWroteInAnyOrder) {
  roles::Payload first = top_k_payload(3), second = top_k_payload(3);
  write(first, 0);
  write(second, 1);
  // 2 records of 56 bytes, and 3 rows of 2 * 8 + 4.
  EXPECT_EQ(fs::file_size(file()), 2u * 56 + 3 * 20);

  const PayloadCache cache = open();
  EXPECT_EQ(cache.num_sequences(), 2);
  EXPECT_EQ(cache.num_rows(), 3);
  auto wanted = two_sequences();
  wanted[0].first_row = 2;
  wanted[1].first_row = 0;
  roles::Payload got = roles::blank_payload(first.label.spec, 3, 4, 9, at::kFloat);
  for (const WantedSequence& sequence : wanted)
    cache.read(sequence, got);
  const at::Tensor order = at::tensor({1, 2, 0}, at::kLong);
  EXPECT_TRUE(got.ids.equal(first.ids.index_select(0, order)));
  EXPECT_TRUE(got.logps.equal(first.logps.index_select(0, order)));
  EXPECT_TRUE(got.log_tail.equal(first.log_tail.index_select(0, order)));
  EXPECT_NEAR(got.masked_mass_sum, 0.75, 1e-15);

  wanted[0].key[3] = static_cast<char>(wanted[0].key[3] ^ 1);
  test::expect_error(ErrorCode::kMismatch, "is not in the cache",
                     [&] { cache.read(wanted[0], got); });
}

TEST_F(PayloadCacheTest, KeepsHiddenStatesInTheirDtype) {
  const roles::PayloadSpec spec{};
  roles::Payload payload = roles::blank_payload(spec, 3, 5, 9, at::kBFloat16);
  payload.hidden.copy_(at::rand({3, 5}));
  write(payload);
  EXPECT_EQ(fs::file_size(file()), 2u * 56 + 3 * 10);
  roles::Payload got = roles::blank_payload(spec, 3, 5, 9, at::kBFloat16);
  const PayloadCache cache = open();
  for (const WantedSequence& sequence : two_sequences())
    cache.read(sequence, got);
  EXPECT_TRUE(got.hidden.equal(payload.hidden));
  // Another kind or size is not read as if it were this one.
  roles::Payload other = roles::blank_payload(spec, 3, 6, 9, at::kBFloat16);
  test::expect_error(ErrorCode::kCorrupt, "is shorter",
                     [&] { cache.read(two_sequences()[0], other); });
  roles::Payload narrower = roles::blank_payload(spec, 3, 4, 9, at::kBFloat16);
  test::expect_error(ErrorCode::kCorrupt, "is longer",
                     [&] { cache.read(two_sequences()[0], narrower); });
}

TEST_F(PayloadCacheTest, ATornRecordIsLostAlone) {
  roles::Payload payload = top_k_payload(3);
  write(payload);
  const auto whole = fs::file_size(file());
  const uintmax_t first = 56 + 20;
  for (const uintmax_t size : {whole - 1, first + 60, first + 3}) {
    const std::string before = read_file(file());
    fs::resize_file(file(), size);
    cut_torn_records(folder(), 1, 2);  // the file of another rank
    EXPECT_EQ(fs::file_size(file()), size);
    cut_torn_records(folder(), 0, 2);
    EXPECT_EQ(fs::file_size(file()), first);
    EXPECT_TRUE(open().contains(two_sequences()[0].key));
    std::ofstream(file(), std::ios::binary) << before;
  }
  cut_torn_records(folder(), 0, 1);
  EXPECT_EQ(fs::file_size(file()), whole);
}

TEST_F(PayloadCacheTest, EveryDamagedByteIsFound) {
  roles::Payload payload = top_k_payload(3);
  write(payload);
  const std::string good = read_file(file());
  for (size_t at = 0; at < good.size(); ++at) {
    std::string damaged = good;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    std::ofstream(file(), std::ios::binary) << damaged;
    roles::Payload got = roles::blank_payload(payload.label.spec, 3, 4, 9, at::kFloat);
    EXPECT_THROW(
        {
          const PayloadCache cache = open();
          for (const WantedSequence& sequence : two_sequences())
            cache.read(sequence, got);
        },
        Error)
        << "byte " << at;
  }
}

TEST_F(PayloadCacheTest, AFileThatIsShorterThanTheManifestSaysIsRefused) {
  roles::Payload payload = top_k_payload(3);
  write(payload);
  auto files = payload_files(folder());
  files[0].bytes += 1;
  test::expect_error(ErrorCode::kCorrupt, "is shorter than the",
                     [&] { PayloadCache(folder(), files); });
  files[0].bytes -= 2;
  test::expect_error(ErrorCode::kCorrupt, "holds no payload at byte",
                     [&] { PayloadCache(folder(), files); });
}

}  // namespace
}  // namespace retort::recipes

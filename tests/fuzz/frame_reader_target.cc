// Decodes: the frames under TensorPipe (rpc/transport/detail/frame_reader.h). The first bytes say
//   the size of the pieces and up to 8 reads, sized, unsized or of an object; the rest is what the
//   socket brings.
// Holds: however the bytes are cut into pieces, the same reads end with the same bytes; every read
//   ends once.
#include "rpc/transport/detail/frame_reader.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/target_list.h"

namespace retort::fuzz::frame_reader {
namespace {

using namespace rpc::transport;
using Progress = FrameReader::Progress;

constexpr FrameLimits kLimits{.max_unsized_bytes = 40'000, .max_first_frame_bytes = 4096};
constexpr size_t kMaxReads = 8;

struct Plan {
  enum class Kind : uint8_t { kSized, kUnsized, kObject };
  std::vector<std::pair<Kind, size_t>> reads;  // and the size of a sized one
};

// An object that takes whatever bytes it has.
class AnyObject final : public tensorpipe::AbstractNopHolder {
 public:
  size_t getSize() const override { return 0; }
  nop::Status<void> write(tensorpipe::NopWriter&) const override { return {}; }
  nop::Status<void> read(tensorpipe::NopReader& reader) override {
    reader = tensorpipe::NopReader(nullptr, 0);
    return {};
  }
};

// What became of each read: its bytes, or "failed".
class Reading {
 public:
  explicit Reading(const Plan& plan) : memory_(plan.reads.size()), outcomes_(plan.reads.size()) {
    for (size_t i = 0; i < plan.reads.size(); ++i) {
      const auto [kind, size] = plan.reads[i];
      ReadOperation read;
      read.on_bytes = [this, i](const auto& error, const void* data, size_t bytes) {
        finish(i, error ? "failed" : std::string(static_cast<const char*>(data), bytes));
      };
      read.on_object = [this, i](const auto& error) { finish(i, error ? "failed" : "object"); };
      if (kind == Plan::Kind::kSized) {
        memory_[i].resize(size);
        read.sized = true;
        read.data = memory_[i].data();
        read.length = size;
      }
      if (kind == Plan::Kind::kObject) read.object = &object_;
      reader_.push(std::move(read));
    }
  }

  // All of the bytes, then the end of the connection.
  Progress feed(std::string_view bytes, size_t piece) {
    (void)reader_.first_frame();
    Progress progress = reader_.serve();
    while (progress != Progress::kCorrupt) {
      size_t moved = 0;
      for (const auto& buffer : reader_.room()) {
        const size_t size = std::min({buffer.size(), bytes.size(), piece - moved});
        if (size > 0) std::memcpy(buffer.data(), bytes.data(), size);
        bytes.remove_prefix(size);
        moved += size;
      }
      if (moved == 0) break;
      reader_.arrived(moved);
      do
        progress = reader_.serve();
      while (progress == Progress::kServed);
    }
    reader_.fail(connection_error("the end"));
    return progress;
  }

  std::vector<std::string> outcomes() const {
    std::vector<std::string> all;
    for (const auto& outcome : outcomes_) {
      expect(outcome.size() == 1, "a read did not end once");
      all.push_back(outcome.front());
    }
    return all;
  }

 private:
  void finish(size_t i, std::string outcome) { outcomes_[i].push_back(std::move(outcome)); }

  AnyObject object_;
  std::vector<std::vector<char>> memory_;
  std::vector<std::vector<std::string>> outcomes_;
  FrameReader reader_{kLimits};
};

bool decode(std::string_view bytes) {
  ByteSource source(bytes);
  const size_t piece = source.number<uint16_t>() + 1u;
  Plan plan;
  const size_t num_reads = source.byte() % (kMaxReads + 1);
  for (size_t i = 0; i < num_reads; ++i) {
    const auto kind = static_cast<Plan::Kind>(source.byte() % 3);
    plan.reads.emplace_back(kind, source.number<uint16_t>());
  }
  const std::string_view stream = source.rest();

  Reading in_pieces(plan), whole(plan);
  const Progress one = in_pieces.feed(stream, piece);
  const Progress other = whole.feed(stream, size_t{1} << 20);
  expect((one == Progress::kCorrupt) == (other == Progress::kCorrupt), "pieces change the end");
  const auto outcomes = whole.outcomes();
  expect(in_pieces.outcomes() == outcomes, "pieces change what is read");
  return !outcomes.empty() && std::count(outcomes.begin(), outcomes.end(), "failed") == 0;
}

std::vector<Seed> seeds() {
  const auto frame = [](const std::string& body) {
    return ByteSink().number(uint64_t{body.size()}).raw(body).bytes();
  };
  const auto read = [](Plan::Kind kind, uint16_t size) {
    return ByteSink().byte(static_cast<uint8_t>(kind)).number(size).bytes();
  };
  const std::string sized = read(Plan::Kind::kSized, 5);
  const std::string unsized = read(Plan::Kind::kUnsized, 0);
  const std::string object = read(Plan::Kind::kObject, 0);
  const auto seed = [](uint16_t piece, uint8_t reads, const std::string& rest) {
    return ByteSink().number(piece).byte(reads).raw(rest).bytes();
  };
  return {{"three", seed(2, 3, sized + unsized + object + frame("hello") + frame("") + frame("x"))},
          {"large", seed(500, 1, unsized + frame(std::string(900, 'b')))},
          {"sized", seed(0, 2, sized + sized + frame("first") + frame("other"))}};
}

}  // namespace

Target target() { return {"frame_reader", decode, seeds}; }

}  // namespace retort::fuzz::frame_reader

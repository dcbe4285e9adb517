// What two processes must have in common: what is seen of a type, the hash that travels, and the
// types of every method, written down so that a change of one is seen in review.
#include "rpc/schema.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <regex>
#include <set>

#include "base/file.h"
#include "launch/links/link_methods.h"
#include "roles/environment/methods.h"
#include "roles/generator/methods.h"
#include "roles/reward/methods.h"
#include "roles/teacher/methods.h"
#include "rpc/detail/frames.h"
#include "rpc/detail/wire_schema.h"
#include "tests/support/source_folder.h"

namespace retort::rpc {
namespace {

struct Leaf {
  bool flag = false;
  double number = 0;
  template <class A>
  void serialize(A& archive) {
    archive(flag, number);
  }
};
struct Every {
  int8_t small = 0;
  uint64_t large = 0;
  float real = 0;
  std::string text;
  at::Tensor tensor;
  std::vector<Leaf> leaves;
  std::array<int32_t, 3> three{};
  std::map<std::string, std::optional<int64_t>> maybe;
  std::pair<Leaf, bool> both;
  detail::BulkKind kind{};
  template <class A>
  void serialize(A& archive) {
    archive(small, large, real, text, tensor, leaves);
    archive(three, maybe, both, kind);
  }
};
struct Branch {
  std::vector<Branch> branches;
  template <class A>
  void serialize(A& archive) {
    archive(branches);
  }
};
struct Swapped {
  bool flag = false;
  double number = 0;
  template <class A>
  void serialize(A& archive) {
    archive(number, flag);
  }
};
struct Nested {
  Leaf leaf;
  template <class A>
  void serialize(A& archive) {
    archive(leaf);
  }
};

TEST(Schema, NamesTypesInOrder) {
  EXPECT_EQ(schema_text<Every>(),
            "{i8 u64 f32 string tensor [{bool f64}] [i32*3] map(string i64?) ({bool f64} bool) "
            "u8(requests=0|replies=1)}");
  EXPECT_EQ(schema_text<Empty>(), "{}");
  EXPECT_EQ(schema_text<Branch>(), "{[up0]}");
}

TEST(Schema, OrderAndNestingMatter) {
  const std::set<std::string> texts{schema_text<Leaf>(), schema_text<Swapped>(),
                                    schema_text<Nested>(), schema_text<std::vector<Leaf>>(),
                                    schema_text<std::optional<Leaf>>()};
  EXPECT_EQ(texts.size(), 5u);
}

TEST(Schema, OfAMethodIsItsRequestAndItsReply) {
  constexpr Method<Leaf, Empty> kOne{"one"}, kOther{"other", true};
  constexpr Method<Empty, Leaf> kTurned{"one"};
  EXPECT_EQ(method_schema(kOne), method_schema(kOther)) << "the name travels by itself";
  EXPECT_NE(method_schema(kOne), method_schema(kTurned));
  EXPECT_EQ(method_schema(kOne), schema_hash("{bool f64} -> {}"));
  EXPECT_EQ(schema_name(0x0123456789abcdef), "0123456789abcdef");
  EXPECT_EQ(schema_name(1), "0000000000000001");
}

TEST(Schema, OfTheWireHoldsTheReleaseAndEveryFrame) {
  EXPECT_TRUE(detail::wire_schema().starts_with("retort ")) << detail::wire_schema();
  EXPECT_TRUE(detail::wire_schema().ends_with(detail::wire_format()));
  EXPECT_NE(detail::wire_format().find("standing=10"), std::string::npos);
}

template <class Request, class Reply>
std::string line_of(const Method<Request, Reply>& method) {
  return std::string(method.name) + " " + schema_name(method_schema(method)) + "\n  " +
         schema_text<Request>() + "\n  -> " + schema_text<Reply>() + "\n";
}

std::string method_lines() {
  using namespace roles;
  return line_of(kTeacherInfo) + line_of(kTeacherHead) + line_of(kTeacherForward) +
         line_of(kTeacherPull) + line_of(kRewardScore) + line_of(kJudgeAnswer) +
         line_of(kGeneratorInfo) + line_of(kGenerateSubmit) + line_of(kGenerateCollect) +
         line_of(kGeneratorScore) + line_of(kWeightsBucket) + line_of(kWeightsPass) +
         line_of(kWeightsCommit) + line_of(kEnvironmentInfo) + line_of(kEnvironmentOpen) +
         line_of(kEnvironmentStep) + line_of(kEnvironmentClose) + line_of(launch::links::kLinkEcho);
}

// With RETORT_UPDATE_DOCS=1 the file is written first.
TEST(Schemas, AreThoseThatAreWrittenDown) {
  const auto path = test::source_folder() / "tests/rpc/schemas.txt";
  const std::string text = "wire\n  " + detail::wire_format() + "\n" + method_lines();
  if (std::getenv("RETORT_UPDATE_DOCS")) write_file_atomically(path, text);
  EXPECT_EQ(read_file(path), text)
      << "the wire or a method changed: write the file anew with RETORT_UPDATE_DOCS=1 ctest -R "
         "rpc_unit_test, and raise kConventions where the types do not show the change";
}

TEST(Schemas, EveryMethodIsWrittenDown) {
  const std::regex declared(R"rx(rpc::Method<[^>]*> k\w+\{"([^"]+)")rx");
  const std::string lines = method_lines();
  size_t found = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(test::source_folder() / "roles")) {
    if (entry.path().extension() != ".h") continue;
    const std::string source = read_file(entry.path());
    for (std::sregex_iterator match(source.begin(), source.end(), declared), end; match != end;
         ++match, ++found)
      EXPECT_NE(("\n" + lines).find("\n" + match->str(1) + " "), std::string::npos)
          << match->str(1) << " of " << entry.path() << " is not in method_lines()";
  }
  EXPECT_EQ(found, 17u) << "a declaration of another form?";
}

}  // namespace
}  // namespace retort::rpc

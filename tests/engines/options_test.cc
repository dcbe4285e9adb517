#include "engines/contract/options.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include "base/error.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

using test::error_of;

class ExternalOptionsTest : public test::FolderTest {};

ExternalOptions good() { return {.url = {"https://gpu1:8000"}, .tokenizer = "models/teacher"}; }

TEST_F(ExternalOptionsTest, RefusesWhatCannotBe) {
  EXPECT_NO_THROW(good().validate());
  const auto refused = [](void (*change)(ExternalOptions&), const std::string& part) {
    ExternalOptions options = good();
    change(options);
    const std::string message = error_of([&] { options.validate(); }).message();
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  refused([](auto& o) { o.url = {}; }, "url: is missing");
  refused([](auto& o) { o.url = {"gpu1:8000"}; }, "gpu1:8000");
  refused([](auto& o) { o.url.push_back(o.url[0]); }, "twice");
  refused([](auto& o) { o.url.push_back("https://gpu2:8000"), o.command = {"serve"}; },
          "starts one engine");
  refused([](auto& o) { o.max_inflight = 0; }, "max_inflight");
  refused([](auto& o) { o.tolerance = 0; }, "tolerance");
  refused([](auto& o) { o.api_key_env = "A", o.api_key_file = "b"; }, "api_key_file");
  refused([](auto& o) { o.tensors = {{"input_ids", "x"}}; }, "engine: kserve");
  refused([](auto& o) { o.weights.folder = "x"; }, "no effect with via: none");
  refused([](auto& o) { o.weights.via = WeightRoute::kFolder; }, "weights.folder: is missing");
  refused([](auto& o) { o.weights.canary_tokens = 0; }, "canary_tokens");
}

TEST_F(ExternalOptionsTest, KeyComesFromFileOrVariable) {
  ExternalOptions options = good();
  EXPECT_EQ(read_api_key(options), "");
  put(folder_ / "key", "from-file\n");
  options.api_key_file = folder_ / "key";
  const auto owner = std::filesystem::perms::owner_read;
  std::filesystem::permissions(folder_ / "key", owner | std::filesystem::perms::others_read);
  const std::string open = error_of([&] { read_api_key(options); }).message();
  EXPECT_NE(open.find("has mode 0404"), std::string::npos) << open;
  EXPECT_EQ(open.find("from-file"), std::string::npos) << open;
  std::filesystem::permissions(folder_ / "key", owner);
  EXPECT_EQ(read_api_key(options), "from-file");

  options.api_key_file = "";
  options.api_key_env = "RETORT_TEST_ENGINE_KEY";
  ::unsetenv("RETORT_TEST_ENGINE_KEY");
  EXPECT_NE(error_of([&] { read_api_key(options); }).message().find("RETORT_TEST_ENGINE_KEY"),
            std::string::npos);
  ::setenv("RETORT_TEST_ENGINE_KEY", "from-variable", 1);
  EXPECT_EQ(read_api_key(options), "from-variable");
  ::unsetenv("RETORT_TEST_ENGINE_KEY");
}

TEST_F(ExternalOptionsTest, MissingKeysAreSaid) {
  ExternalOptions options = good();
  put(folder_ / "empty", "\n");
  std::filesystem::permissions(folder_ / "empty", std::filesystem::perms::owner_read);
  options.api_key_file = folder_ / "empty";
  EXPECT_NE(error_of([&] { read_api_key(options); }).message().find("is empty"), std::string::npos);
  options.api_key_file = folder_ / "none";
  EXPECT_NE(error_of([&] { read_api_key(options); }).message().find("none"), std::string::npos);
}

}  // namespace
}  // namespace retort::engines

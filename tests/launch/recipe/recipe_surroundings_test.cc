// Complaints about a recipe that depend on what lies beside it: models, modules, files.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "tests/launch/recipe/recipe_fixture.h"
#include "tests/support/thrown.h"

namespace retort::test {
namespace {

// A model of 6 heads, 3 key/value heads, 32 intermediate columns and 4 layers.
class LayoutOfAModelTest : public RecipeTest {
 protected:
  LayoutOfAModelTest() {
    std::ofstream(folder_ / "student" / "config.json")
        << R"({"model_type": "llama", "vocab_size": 64, "hidden_size": 48, "intermediate_size": 32,
                "num_hidden_layers": 4,
               "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8,
                "rms_norm_eps": 1e-6,
                "hidden_act": "silu",
               "max_position_embeddings": 128, "rope_theta": 10000.0,
                "tie_word_embeddings": false})";
  }
  std::string with_world(const std::string& world) const {
    return replaced(kSft, "FOLDER/student", "FOLDER/student\n    world: {" + world + "}");
  }
};

TEST_F(LayoutOfAModelTest, ThatDoesNotDivideItIsRefusedWithBothNumbers) {
  const std::string prefix = "r.yaml:6: roles.student.world: ";
  for (const auto& [world, message] : std::vector<std::pair<std::string, std::string>>{
           {"tp: 4", "world.tp 4 does not divide num_attention_heads 6 of the model"},
           {"tp: 12", "world.tp 12 does not divide num_attention_heads 6 of the model"},
           {"tp: 3", "world.tp 3 does not divide intermediate_size 32 of the model"},
           {"tp: 2",
            "world.tp 2 and num_key_value_heads 3 of the model: one must be a multiple of the "
            "other"},
           {"pp: 5", "world.pp 5 asks for more stages than the model has layers: 4"},
           {"pp: 2, virtual_pp: 3",
            "world.pp 2 times virtual_pp 3 asks for more stages than the model has layers: 4"}})
    EXPECT_EQ(error_of(with_world(world)), prefix + message);
}

TEST_F(LayoutOfAModelTest, ThatDividesItIsTaken) {
  for (const std::string world :
       {"pp: 3", "pp: 2, virtual_pp: 2", "pp: 4, dp: 2, distributed_optimizer: true", "dp: 3"})
    EXPECT_NO_THROW(load(with_world(world))) << world;
}

// Three processes on one host.
TEST_F(RecipeTest, APortForEachProcess) {
  const auto with = [](const std::string& port) {
    return replaced(kDistill, "data:\n", "rpc:\n  port: \"" + port + "\"\ndata:\n");
  };
  const std::string place = "r.yaml:10: rpc.port: is enough for ";
  const std::string reason =
      " of the 3 processes of a host, each of which listens at a port of its own; write a range "
      "of at least 3, or 0: any that is free";
  EXPECT_EQ(error_of(with("7000-7001")), place + "2" + reason);
  EXPECT_EQ(error_of(with("7000")), place + "1" + reason);
  for (const char* port : {"7000-7002", "0"})
    EXPECT_NO_THROW(load(with(port))) << port;
}

TEST_F(RecipeTest, CudaWithoutTheModuleIsUnavailable) {
  const std::string text = replaced(kDistill, "{dp: 2}", "{device: cuda}");
  const std::string message = message_of([&] { load(text); }, ErrorCode::kUnavailable);
  EXPECT_NE(message.find("r.yaml:8: roles.teacher.world.device:"), std::string::npos) << message;
  EXPECT_EQ(load(text, {}, {.cuda = true}).roles.at("teacher").world.device,
            parallel::Device::kCuda);
}

TEST_F(RecipeTest, VariablesOfARole) {
  const auto with = [](const std::string& env) {
    return replaced(kDistill, "world: {dp: 2}", "world: {dp: 2}\n    env: {" + env + "}");
  };
  EXPECT_EQ(load(with("GLOO_SOCKET_IFNAME: lo")).roles.at("teacher").env.at("GLOO_SOCKET_IFNAME"),
            "lo");
  for (const auto& [env, message] : std::vector<std::pair<std::string, std::string>>{
           {"OMP_NUM_THREADS: 2",
            "the launcher sets this variable itself; threads are roles.teacher.world.threads"},
           {"RETORT_RUN: x",
            "the launcher sets this variable itself; threads are roles.teacher.world.threads"},
           {"NCCL_DEBUG: INFO",
            "has no effect with world.device: cpu; remove it, or use device: cuda"},
           {"nccl: INFO", "the name of an environment variable has capital letters, digits and _"}})
    EXPECT_NE(error_of(with(env)).find(message), std::string::npos) << error_of(with(env));
  EXPECT_NO_THROW(load(
      replaced(kDistill, "world: {dp: 2}",
               "world: {device: cuda}\n    env: {NCCL_DEBUG: INFO, CUDA_VISIBLE_DEVICES: '1'}"),
      {}, {.cuda = true}));
}

TEST_F(RecipeTest, MissingFileAndFolderAreTheUsersInput) {
  for (const auto& path : {folder_ / "none.yaml", folder_}) {
    const Error error = test::error_of([&] { launch::load_recipe(path, {}); });
    EXPECT_EQ(exit_code_for(error.code()), 2);
    EXPECT_NE(error.message().find(path.string()), std::string::npos);
  }
}

TEST_F(RecipeTest, EmptyFileAndScalarFileAreRefused) {
  EXPECT_EQ(error_of("").rfind("r.yaml:1: expected a recipe", 0), 0u);
  EXPECT_EQ(error_of("hello").rfind("r.yaml:1: expected a recipe", 0), 0u);
}

TEST_F(RecipeTest, DeepNestingAndAliasBombsEnd) {
  std::string deep = "output_dir: ";
  for (int i = 0; i < 60; ++i)
    deep += "[";
  for (int i = 0; i < 60; ++i)
    deep += "]";
  EXPECT_NE(error_of(deep).find("nested deeper than"), std::string::npos);
  std::string bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n";
  for (char c = 'b'; c < 'i'; ++c) {
    const std::string last(1, static_cast<char>(c - 1));
    bomb += std::string(1, c) + ": &" + c + " [";
    for (int i = 0; i < 10; ++i)
      bomb += (i ? ", *" : "*") + last;
    bomb += "]\n";
  }
  EXPECT_NE(error_of(bomb).find("more than 100000 values"), std::string::npos);
}

// 300 uses of a text of 1 MiB would be copied again by every step that follows.
TEST_F(RecipeTest, TextIsBoundedWithWhatAliasesStandFor) {
  const auto text_of = [](size_t bytes, int uses) {
    std::string text = "a: &a ";
    text.append(bytes, 'x').append("\nb: [");
    for (int i = 0; i < uses; ++i)
      text += i ? ", *a" : "*a";
    return text + "]\n";
  };
  const auto start = std::chrono::steady_clock::now();
  for (const std::string& text :
       {text_of(1 << 20, 300), text_of(100'000, 20), text_of(2 << 20, 0)}) {
    const std::string message = error_of(text);
    EXPECT_NE(message.find("more than 1048576 bytes of text"), std::string::npos)
        << message.substr(0, 200);
    EXPECT_LT(message.size(), 1000u);
  }
  EXPECT_EQ(error_of(text_of(100'000, 9)).find("more than"), std::string::npos) << "it fits";

  // What variables hold counts too, and so do keys.
  ::setenv("RETORT_TEST_LONG", std::string(100'000, 'y').c_str(), 1);
  std::string variables = "a: '";
  for (int i = 0; i < 20; ++i)
    variables += "${RETORT_TEST_LONG}";
  EXPECT_NE(error_of(variables + "'").find("more than 1048576 bytes"), std::string::npos);
  ::unsetenv("RETORT_TEST_LONG");
  std::string long_key = "? ";
  long_key.append(2 << 20, 'k').append("\n: 1\n");
  EXPECT_NE(error_of(long_key).find("more than 1048576 bytes"), std::string::npos);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

// Neither a tree of all that is written, nor a look at each key before for every key.
TEST_F(RecipeTest, ManyKeysAndItemsEndSoon) {
  std::string items = "a: [";
  std::string keys;
  for (int i = 0; i < 1'000'000; ++i)
    items += "x,";
  for (int i = 0; i < 90'000; ++i)
    keys += "k" + std::to_string(i) + ": 1\n";
  EXPECT_NE(error_of(items + "]").find("more than 100000 values"), std::string::npos);
  EXPECT_NE(error_of(keys), "no error") << "no recipe has such keys";
  EXPECT_NE(error_of(std::string(9 << 20, '#')).find("at most 8388608"), std::string::npos);
}

TEST_F(RecipeTest, APipeMayGiveIt) {
  const auto pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const Error empty = test::error_of([&] { launch::load_recipe(pipe, {}); });
  EXPECT_NE(empty.message().find("nothing is written into"), std::string::npos);

  // More than a pipe holds, so that it is open for reading before it is closed for writing.
  const std::string text = "hello\n#" + std::string(200'000, '-');
  const int fd = ::open(pipe.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  std::thread writer([&] {
    for (size_t done = 0; done < text.size();)
      done += static_cast<size_t>(::write(fd, text.data() + done, text.size() - done));
    ::close(fd);
  });
  const Error scalar = test::error_of([&] { launch::load_recipe(pipe, {}); });
  writer.join();
  EXPECT_NE(scalar.message().find("expected a recipe"), std::string::npos) << scalar.message();
}

}  // namespace
}  // namespace retort::test

// Checkpoints that the ranks of a layout write together: the same files whichever layout wrote
// them, readable in every other, and never half there, whatever happens to disk and ranks.
#include "recipes/run/checkpoints/checkpoint_store.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>

#include <random>
#include <thread>

#include "base/end_process.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "models/checkpoint/checkpoint.h"
#include "models/safetensors/file_checksums.h"
#include "models/safetensors/safetensors.h"
#include "recipes/run/checkpoints/checkpoint_folder.h"
#include "tests/recipes/checkpoints/checkpoint_ranks.h"
#include "tests/support/caching_mount.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/source_folder.h"
#include "tests/support/thrown.h"

namespace retort::recipes::testing {
namespace {

class Checkpoints : public test::FolderTest {
 protected:
  // A model of four layers whose vocabulary no number of ranks divides, as a checkpoint.
  fs::path model(const std::string& golden, at::ScalarType dtype, int64_t hidden = 32,
                 uint64_t shard_bytes = 0) {
    const fs::path from = test::source_folder() / "tests/models/goldens" / golden;
    models::ModelConfig config = models::read_model_config(from);
    config.vocab_size = 97;
    config.num_hidden_layers = 4;
    config.sliding_window.resize(4);
    config.hidden_size = hidden;
    if (hidden > 32) {
      config.intermediate_size = 2 * hidden;
      config.head_dim = hidden / config.num_attention_heads;
    }
    models::Decoder decoder = models::Decoder::random(config, 5, dtype);
    decoder.set_shard_bytes(shard_bytes);
    const fs::path folder = folder_ / (golden + "-" + std::to_string(hidden));
    fs::create_directories(folder);
    models::save_decoder(decoder, dtype, from, folder);
    return folder;
  }

  // Steps of one process; a checkpoint after each.
  fs::path reference(const fs::path& source, int steps, parallel::Layout layout = {}) {
    const fs::path run = folder_ / ("reference-" + random_hex(3));
    Ranks ranks({.layout = layout, .source = source, .run_folder = run});
    for (int step = 1; step <= steps; ++step) {
      ranks.expect_ok("train");
      ranks.expect_ok("save");
    }
    return run;
  }
};

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

// Each layout loads what the one before saved, has its slices, and saves the same bytes.
TEST_F(Checkpoints, PassFromLayoutToLayoutBitForBit) {
  const std::vector<parallel::Layout> layouts{{.tp = 2, .dp = 2},
                                              {.tp = 2, .pp = 2},
                                              {.pp = 2, .dp = 2, .distributed_optimizer = true},
                                              {.tp = 4},
                                              {.pp = 2, .virtual_pp = 2},
                                              {.tp = 2, .dp = 2, .distributed_optimizer = true},
                                              {}};
  // Tied, fp32, query and key norms; untied, bf16 with masters, biases, in shards.
  for (const fs::path& source :
       {model("qwen3", at::kFloat), model("qwen2_window_bf16", at::kBFloat16, 32, 20'000)}) {
    const fs::path first = reference(source, 2) / "checkpoint-2";
    EXPECT_EQ(fs::exists(first / "model.safetensors.index.json"), source.filename() != "qwen3-32");
    fs::path last = first;
    for (const parallel::Layout& layout : layouts) {
      const fs::path run = folder_ / random_hex(6);
      Ranks ranks({.layout = layout, .source = source, .run_folder = run, .load = last});
      ranks.expect_ok("check " + last.string());
      ranks.expect_ok("save");
      EXPECT_EQ(names_in(run), std::vector<std::string>{"checkpoint-2"});
      last = run / "checkpoint-2";
      EXPECT_EQ(difference(first, last), "") << layout_text(layout);
      parallel::Layout known = layout;
      known.threads = 1;
      EXPECT_EQ(layout_text(read_loop_state(last).layout), layout_text(known));
    }
  }
}

// The next step changes what is being saved.
TEST_F(Checkpoints, WrittenMeanwhileAreThoseOfThePauseBitForBit) {
  const fs::path source = model("qwen2_window_bf16", at::kBFloat16, 256);
  for (const parallel::Layout& layout :
       {parallel::Layout{.tp = 2, .dp = 2, .distributed_optimizer = true}, parallel::Layout{}}) {
    const fs::path expected = reference(source, 3, layout), run = folder_ / random_hex(6);
    Ranks ranks({.layout = layout,
                 .source = source,
                 .run_folder = run,
                 .async = true,
                 .save_total_limit = 2});
    for (int step = 1; step <= 3; ++step) {
      ranks.expect_ok("train");
      ranks.expect_ok("save");
      EXPECT_FALSE(fs::exists(checkpoint_path(run, step))) << "before the ranks voted";
      if (step == 1) continue;
      EXPECT_EQ(difference(checkpoint_path(expected, step - 1), checkpoint_path(run, step - 1)),
                "");
    }
    ranks.expect_ok("finish");
    EXPECT_EQ(difference(expected / "checkpoint-3", run / "checkpoint-3"), "");
    EXPECT_EQ(names_in(run), (std::vector<std::string>{"checkpoint-2", "checkpoint-3"}));
    ranks.expect_ok("finish");
  }
}

// Which rank's disk is full, and whether it saves meanwhile.
class FullDisk : public Checkpoints,
                 public ::testing::WithParamInterface<std::tuple<size_t, bool>> {};

TEST_P(FullDisk, StopsAllRanksAndKeepsTheLastGoodOne) {
  const auto [rank, async] = GetParam();
  const fs::path source = model("qwen3", at::kFloat), run = folder_ / "run";
  const parallel::Layout layout{.tp = 2, .dp = 2, .distributed_optimizer = true};
  const fs::path expected = reference(source, 2, layout);
  Ranks ranks({.layout = layout, .source = source, .run_folder = run, .async = async});
  const auto save = [&] {
    auto answers = ranks.ask("save");
    return async && answers[0] == "ok" ? ranks.ask("finish") : answers;
  };
  ranks.expect_ok("train");
  for (const std::string& answer : save())
    EXPECT_EQ(answer, "ok");
  ranks.expect_ok("train");
  EXPECT_EQ(ranks.ask_one(rank, "limit 3000"), "ok");
  for (const std::string& answer : save()) {
    EXPECT_TRUE(
        answer.starts_with("error " + std::string(to_string(ErrorCode::kResourceExhausted))))
        << answer;
    EXPECT_NE(answer.find("checkpoint-2 was not saved"), std::string::npos) << answer;
    EXPECT_NE(answer.find(".safetensors"), std::string::npos) << answer;
  }
  EXPECT_EQ(names_in(run), std::vector<std::string>{"checkpoint-1"});
  EXPECT_EQ(difference(expected / "checkpoint-1", run / "checkpoint-1"), "");
  EXPECT_EQ(ranks.ask_one(rank, "limit -1"), "ok");
  for (const std::string& answer : save())
    EXPECT_EQ(answer, "ok");
  EXPECT_EQ(difference(expected / "checkpoint-2", run / "checkpoint-2"), "");
}
INSTANTIATE_TEST_SUITE_P(Ranks, FullDisk,
                         ::testing::Combine(::testing::Values(0, 3), ::testing::Bool()),
                         [](const auto& info) {
                           return "Rank" + std::to_string(std::get<0>(info.param)) +
                                  (std::get<1>(info.param) ? "Async" : "Sync");
                         });

// A file system of its own on `folder`, with room for `bytes`, for this thread and the processes
// that it starts. False: that needs rights which this test has not.
bool mount_small(const fs::path& folder, uint64_t bytes) {
  fs::create_directories(folder);
  const std::string size = "size=" + std::to_string(bytes);
  return ::unshare(CLONE_NEWNS) == 0 &&
         ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", folder.c_str(), "tmpfs", 0, size.c_str()) == 0;
}

uint64_t bytes_in(const fs::path& folder) {
  constexpr uint64_t kPage = 4096;
  uint64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) bytes += (entry.file_size() + kPage - 1) / kPage * kPage;
  return bytes;
}

// There is room for two and a half: the oldest goes, where fewer are wanted than all.
TEST_F(Checkpoints, OldestMakesRoomOnAFullDisk) {
  const fs::path source = model("qwen3", at::kFloat), small = folder_ / "small";
  const parallel::Layout layout{.dp = 2};
  const fs::path expected = reference(source, 4, layout);
  const uint64_t one = bytes_in(expected / "checkpoint-1");
  if (!mount_small(small, 5 * one / 2)) GTEST_SKIP() << "mounts need root";
  for (const bool async : {false, true}) {
    const fs::path run = small / "run";
    Ranks ranks({.layout = layout,
                 .source = source,
                 .run_folder = run,
                 .async = async,
                 .save_total_limit = 3});
    for (int step = 1; step <= 4; ++step) {
      ranks.expect_ok("train");
      ranks.expect_ok("save");
      ranks.expect_ok("finish");
    }
    EXPECT_EQ(names_in(run), (std::vector<std::string>{"checkpoint-3", "checkpoint-4"}));
    for (const char* name : {"checkpoint-3", "checkpoint-4"})
      EXPECT_EQ(difference(expected / name, run / name), "");
    fs::remove_all(run);
  }

  // Who keeps all of them loses none.
  const fs::path run = small / "all";
  Ranks ranks({.layout = layout, .source = source, .run_folder = run});
  for (int step = 1; step <= 2; ++step) {
    ranks.expect_ok("train");
    ranks.expect_ok("save");
  }
  ranks.expect_ok("train");
  for (const std::string& answer : ranks.ask("save"))
    EXPECT_TRUE(answer.starts_with("error resource_exhausted")) << answer;
  EXPECT_EQ(names_in(run), (std::vector<std::string>{"checkpoint-1", "checkpoint-2"}));
}

// The disk stands still for longer than a collective may take, and no rank is lost.
TEST_F(Checkpoints, WaitForADiskThatIsSlowerThanACollective) {
  if (!test::CachingMount::available()) GTEST_SKIP() << "needs root and /dev/fuse";
  const fs::path source = model("qwen3", at::kFloat);
  const parallel::Layout layout{.tp = 2};
  const fs::path expected = reference(source, 1, layout);
  fs::create_directories(folder_ / "disk");
  const test::CachingMount disk(folder_ / "disk", folder_ / "seen");
  Ranks ranks({.layout = layout,
               .source = source,
               .run_folder = disk.path() / "run",
               .timeout = std::chrono::seconds(4)});
  ranks.expect_ok("train");

  disk.stall();
  std::thread server([&] {
    std::this_thread::sleep_for(std::chrono::seconds(6));
    disk.resume();
  });
  ranks.expect_ok("save");
  server.join();
  EXPECT_EQ(difference(expected / "checkpoint-1", folder_ / "disk/run/checkpoint-1"), "");
}

// A rank is killed at a random moment of the save of its third checkpoint, or before or after it.
TEST_F(Checkpoints, SurviveARankThatIsKilled) {
  const fs::path source = model("qwen3", at::kFloat, 256);
  const parallel::Layout layout{.tp = 2, .dp = 2};
  const fs::path expected = reference(source, 5, layout);
  std::mt19937 random(11);
  for (int trial = 0; trial < 6; ++trial) {
    const fs::path run = folder_ / ("killed-" + std::to_string(trial));
    const size_t victim = trial % 2 == 0 ? 0 : 2;
    const bool async = trial % 3 == 2;
    {
      Ranks ranks({.layout = layout, .source = source, .run_folder = run, .async = async});
      for (const char* command : {"train", "save", "train", "save", "finish", "train"})
        ranks.expect_ok(command);
      for (size_t i = 0; i < ranks.size(); ++i)
        ranks[i].write_line("save");
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 250'000));
      ranks[victim].kill();
      for (size_t i = 0; i < ranks.size(); ++i)
        ranks[i].close_stdin();
      EXPECT_EQ(ranks[victim].wait(Deadline::after(std::chrono::seconds(60))), 128 + SIGKILL);
      for (size_t i = 0; i < ranks.size(); ++i)
        ranks[i].wait(Deadline::after(std::chrono::seconds(60)));
    }
    const auto found = list_checkpoints(run);
    ASSERT_GE(found.size(), 2u) << "trial " << trial;
    for (const CheckpointEntry& entry : found)
      EXPECT_EQ(difference(checkpoint_path(expected, entry.step), entry.path), "")
          << "trial " << trial;
    Ranks again({.layout = layout,
                 .source = source,
                 .run_folder = run,
                 .load = found.back().path,
                 .save_total_limit = 2});
    for (const char* command : {"train", "save", "train", "save"})
      again.expect_ok(command);
    const int64_t step = found.back().step + 2;
    EXPECT_EQ(difference(checkpoint_path(expected, step), checkpoint_path(run, step)), "")
        << "trial " << trial;
    EXPECT_EQ(names_in(run).size(), 2u) << "what the crash left is removed";
  }
}

// One byte of a checkpoint that four ranks wrote, anywhere: who goes on from it is told the file.
TEST_F(Checkpoints, AnyByteThatChangesIsToldWithItsFile) {
  const fs::path source = model("qwen2_window_bf16", at::kBFloat16, 32, 20'000);
  const parallel::Layout layout{.tp = 2, .dp = 2, .distributed_optimizer = true};
  const fs::path checkpoint = reference(source, 1, layout) / "checkpoint-1";
  parallel::World world({.role = "student", .layout = {}});
  const auto read = [&] {
    const models::SmallFiles files = models::check_small_files(checkpoint);
    ASSERT_TRUE(files.has_checksums);
    // What a run does not go on with is told, and no error.
    if (!files.changed.empty()) throw Error(ErrorCode::kCorrupt, files.changed.front());
    roles::Trainer trainer(models::load_decoder(checkpoint, at::kBFloat16), world, {});
    trainer.load_state(checkpoint / "state");
  };
  read();

  // By their bytes, so that a place is as likely as any other, and each file once at least.
  std::vector<std::pair<fs::path, uint64_t>> places;
  std::mt19937_64 random(7);
  std::vector<std::pair<fs::path, uint64_t>> files;
  uint64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(checkpoint)) {
    if (!entry.is_regular_file()) continue;
    files.emplace_back(entry.path(), entry.file_size());
    places.emplace_back(entry.path(), random() % entry.file_size());
    bytes += entry.file_size();
  }
  EXPECT_GT(files.size(), 5U);
  while (places.size() < 200) {
    uint64_t place = random() % bytes;
    for (const auto& [file, size] : files) {
      if (place < size) {
        places.emplace_back(file, place);
        break;
      }
      place -= size;
    }
  }

  for (const auto& [file, offset] : places) {
    const std::byte before = MappedFile(file).bytes()[offset];
    const std::byte after = before ^ static_cast<std::byte>(1 + random() % 255);
    SharedFile(file).write(offset, {&after, 1});
    const std::optional<Error> error = test::thrown(read);
    // The number of a format may become that of a later one.
    EXPECT_TRUE(error &&
                (error->code() == ErrorCode::kCorrupt || error->code() == ErrorCode::kMismatch) &&
                error->message().find(file.string()) != std::string::npos)
        << file << " at " << offset << ": " << (error ? error->what() : "nothing is told");
    SharedFile(file).write(offset, {&before, 1});
  }
  read();
}

// What follows on a complete checkpoint fails no run, and is tried again.
TEST_F(Checkpoints, OldOnesThatCannotBeRemovedAreAWarning) {
  const fs::path source = model("qwen3", at::kFloat), run = folder_ / "run";
  parallel::World world({.role = "student", .layout = {}});
  roles::Trainer trainer(models::load_decoder(source, at::kFloat), world, {});
  std::vector<std::string> told;
  int given = 0;
  CheckpointStore store(run, source, {.save_total_limit = 1},
                        {.on_complete =
                             [&](const fs::path&) {
                               if (++given == 1) throw Error(ErrorCode::kUnavailable, "no program");
                             },
                         .in_use = [&]() -> std::vector<fs::path> {
                           if (given == 2) throw Error(ErrorCode::kUnavailable, "it is held");
                           return {};
                         },
                         .warn =
                             [&](int64_t step, const std::string& what) {
                               told.push_back(std::to_string(step) + " " + what);
                             }});
  for (int64_t step = 1; step <= 2; ++step)
    store.save(trainer, world, {.step = step});
  EXPECT_EQ(names_in(run), (std::vector<std::string>{"checkpoint-1", "checkpoint-2"}));
  ASSERT_EQ(told.size(), 2U);
  EXPECT_NE(told[0].find("was saved, but was not given"), std::string::npos) << told[0];
  EXPECT_TRUE(told[1].starts_with("2 ")) << told[1];
  EXPECT_TRUE(told[1].ends_with("older ones are in the way, until the next try: it is held"))
      << told[1];

  store.save(trainer, world, {.step = 3});
  EXPECT_EQ(names_in(run), std::vector<std::string>{"checkpoint-3"});
  EXPECT_EQ(told.size(), 2U);
}

TEST_F(Checkpoints, OfAnotherModelAreRefusedByTensor) {
  const fs::path small = model("qwen3", at::kFloat), large = model("qwen3", at::kFloat, 64);
  const fs::path checkpoint = reference(small, 1) / "checkpoint-1";
  parallel::World world({.role = "student", .layout = {}});
  const auto error_of = [&](const fs::path& source, at::ScalarType dtype, const fs::path& state) {
    roles::Trainer trainer(models::load_decoder(source, dtype), world, {});
    const std::optional<Error> e = test::thrown([&] { trainer.load_state(state); });
    return e ? std::string(to_string(e->code())) + ": " + e->message() : "loaded";
  };
  const std::string mismatch = std::string(to_string(ErrorCode::kMismatch)) + ": ";
  EXPECT_EQ(error_of(small, at::kFloat, checkpoint / "state"), "loaded");
  const std::string shape = error_of(large, at::kFloat, checkpoint / "state");
  EXPECT_TRUE(shape.starts_with(mismatch)) << shape;
  EXPECT_NE(shape.find("'model.embed_tokens.weight.exp_avg' has another shape"), std::string::npos)
      << shape;
  const std::string dtype = error_of(small, at::kBFloat16, checkpoint / "state");
  EXPECT_TRUE(dtype.starts_with(mismatch)) << dtype;
  EXPECT_NE(dtype.find("'model.embed_tokens.weight.master' is missing"), std::string::npos)
      << dtype;
  // A tensor too many, and no step.
  const models::SafetensorsReader reader(checkpoint / "state" / "optimizer.safetensors");
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const std::string& name : reader.names())
    tensors.emplace_back(name, reader.get(name));
  models::write_safetensors(folder_ / "optimizer.safetensors", tensors);
  EXPECT_TRUE(error_of(small, at::kFloat, folder_).starts_with(to_string(ErrorCode::kCorrupt)));
  tensors.emplace_back("other.exp_avg", tensors.front().second);
  models::write_safetensors(folder_ / "optimizer.safetensors", tensors, {{"step", "1"}});
  EXPECT_NE(error_of(small, at::kFloat, folder_).find("'other.exp_avg' belongs to no parameter"),
            std::string::npos);
}

TEST_F(Checkpoints, TheLayoutIsToldInWords) {
  EXPECT_EQ(layout_text({.threads = 1}), "tp 1, pp 1, dp 1, 1 thread");
  EXPECT_EQ(layout_text({.device = parallel::Device::kCuda, .threads = 1}),
            "tp 1, pp 1, dp 1, on cuda, 1 thread");
  EXPECT_EQ(layout_text({.tp = 2,
                         .pp = 2,
                         .dp = 4,
                         .sequence_parallel = true,
                         .virtual_pp = 3,
                         .distributed_optimizer = true,
                         .threads = 8}),
            "tp 2 with sequence_parallel, pp 2 with virtual_pp 3, dp 4 with distributed_optimizer, "
            "8 threads");
}

}  // namespace
}  // namespace retort::recipes::testing

int main(int argc, char** argv) {
  if (retort::test::spawned_role()) retort::end_process(retort::recipes::testing::run_student());
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

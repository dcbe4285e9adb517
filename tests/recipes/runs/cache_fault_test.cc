// What a cache refuses, by name, and a writer that is killed.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <system_error>

#include "base/file.h"
#include "tests/recipes/run_support/cache_support.h"
#include "tests/recipes/run_support/on_policy_support.h"
#include "tests/support/wait_until.h"

namespace retort::test {
namespace {

GoldenRecipe golden() {
  GoldenRecipe recipe{.teacher = "teacher", .distill = {{"payload", "topk"}, {"loss_top_k", "8"}}};
  return recipe;
}

void expect_refused(const CommandResult& result, int exit_code, const std::string& words) {
  EXPECT_EQ(result.exit_code, exit_code) << result.output;
  EXPECT_NE(result.output.find(words), std::string::npos) << result.output;
}

void copy_folder(const fs::path& from, const fs::path& to) {
  fs::copy(from, to, fs::copy_options::recursive);
}

// A copy of the golden rows with one label of the third row more; its path.
fs::path changed_rows(const fs::path& folder) {
  std::string text = read_file(goldens() / "rows.jsonl");
  const std::string labels = "\"labels\": [-100, -100, -100, 57";
  const auto at = text.find(labels);
  EXPECT_NE(at, std::string::npos);
  text.replace(at, labels.size(), "\"labels\": [-100, -100, 46, 57");
  std::ofstream(folder / "changed.jsonl") << text;
  return folder / "changed.jsonl";
}

// A cache of the golden recipe, written once; folder/writer has its recipe.
class WrittenCache : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    written_ = new TemporaryFolder;
    write_cache(*written_ / "writer", golden());
  }
  static void TearDownTestSuite() { delete written_; }
  static fs::path whole() { return *written_ / "writer/cache"; }
  static fs::path recipe() { return *written_ / "writer/recipe.yaml"; }

 private:
  static TemporaryFolder* written_;
};
TemporaryFolder* WrittenCache::written_ = nullptr;

class CacheRefuses : public WrittenCache {
 protected:
  // A copy, that some of them damage.
  void SetUp() override {
    cache_ = folder_ / "cache";
    copy_folder(whole(), cache_);
  }
  CommandResult reads(const Overrides& overrides, const GoldenRecipe& recipe = golden()) {
    return run_cached(folder_ / ("reader" + std::to_string(readers_++)), recipe, cache_, overrides);
  }
  CommandResult checks(const Overrides& overrides) {
    Overrides args{"check", write_recipe(folder_ / "checked", golden()).string()};
    for (const Overrides& some : {from_cache(cache_), overrides})
      args.insert(args.end(), some.begin(), some.end());
    return retort(args);
  }
  TemporaryFolder folder_;
  fs::path cache_;
  int readers_ = 0;
};

TEST_F(CacheRefuses, ARowThatHasChanged) {
  const std::string rows = "data.train=[{path: " + changed_rows(folder_.path()).string() + "}]";
  for (const CommandResult& result : {reads({rows}), checks({rows})})
    expect_refused(result, 1, "changed.jsonl:3 is not in the cache");
  // Fewer rows, or the same in another order, are there.
  std::string text = read_file(goldens() / "rows.jsonl");
  std::ofstream(folder_ / "fewer.jsonl") << text.substr(text.find('\n') + 1);
  const auto fewer = reads(
      {"data.train=[{path: " + (folder_ / "fewer.jsonl").string() + "}]", "train.max_steps=2"});
  EXPECT_EQ(fewer.exit_code, 0) << fewer.output;
  const auto good = checks({});
  EXPECT_EQ(good.exit_code, 0) << good.output;
  EXPECT_NE(good.output.find("ok   cache"), std::string::npos) << good.output;
}

TEST_F(CacheRefuses, AnotherPayload) {
  expect_refused(reads({"distill.loss_top_k=4"}), 2, "distill.teachers.0.cache: the cache '");
  expect_refused(reads({"distill.loss_top_k=4"}), 2, "distill.loss_top_k is 8 in the cache and 4");
  expect_refused(reads({"distill.temperature=2"}), 2, "distill.temperature is 1 in the cache");
  expect_refused(reads({"distill.payload=full", "distill.loss_top_k=null"}), 2,
                 "distill.payload is topk in the cache and full");
}

TEST_F(CacheRefuses, ATeacherThatHasChanged) {
  // Written anew from a teacher that is changed afterwards.
  const fs::path teacher = folder_ / "teacher";
  copy_folder(goldens() / "teacher", teacher);
  GoldenRecipe recipe = golden();
  recipe.teacher = teacher.string();
  cache_ = write_cache(folder_ / "second", recipe);
  ASSERT_FALSE(HasFailure());

  // Touched alone, it is the same.
  const auto later = fs::last_write_time(teacher / "config.json") + std::chrono::hours(1);
  fs::last_write_time(teacher / "model.safetensors", later);
  const auto touched = reads({"train.max_steps=1"});
  EXPECT_EQ(touched.exit_code, 0) << touched.output;

  std::string bytes = read_file(teacher / "model.safetensors");
  bytes[bytes.size() - 2] = static_cast<char>(bytes[bytes.size() - 2] ^ 1);
  std::ofstream(teacher / "model.safetensors", std::ios::binary) << bytes;
  for (const CommandResult& result : {reads({}), checks({})})
    expect_refused(result, 2, "has other weights than when the cache was written");
  // Nor does the writer go on with it.
  expect_refused(retort(cache_command(folder_ / "second" / "recipe.yaml", cache_)), 1,
                 "was begun with another teacher");
}

TEST_F(CacheRefuses, AStudentWithAnotherTokenizer) {
  const fs::path student = folder_ / "student";
  copy_folder(goldens() / "qwen3", student);
  std::string text = read_file(student / "tokenizer.json");
  auto json = nlohmann::json::parse(text);
  auto& vocab = json.at("model").at("vocab");
  std::string first, second;
  for (const auto& [word, id] : vocab.items()) {
    if (id == 20) first = word;
    if (id == 21) second = word;
  }
  ASSERT_FALSE(first.empty() || second.empty());
  vocab[first] = 21;
  vocab[second] = 20;
  std::ofstream(student / "tokenizer.json") << json.dump();
  expect_refused(reads({"roles.student.model=" + student.string()}), 2,
                 "the tokenizer of the student");
}

TEST_F(CacheRefuses, OnPolicyBatches) {
  expect_refused(
      reads({"distill.lmbda=0.5", "roles.generator={model: " + (goldens() / "qwen3").string() + "}",
             "generation={max_new_tokens: 4}"}),
      2, "what the student draws is in no cache");
  const fs::path recipe = write_recipe(folder_ / "other", golden());
  expect_refused(
      retort(cache_command(
          recipe, folder_ / "other" / "cache",
          {"distill.lmbda=0.5", "roles.generator={model: " + (goldens() / "qwen3").string() + "}",
           "generation={max_new_tokens: 4}"})),
      2, "distill.lmbda is above 0");
  expect_refused(retort(cache_command(recipe, folder_ / "other" / "cache",
                                      {"data.packing_strategy=wrapped", "data.packing=true"})),
                 2, "data.packing_strategy");
  expect_refused(reads({"distill.prefetch=4"}), 2, "has no effect where all teachers are caches");
  expect_refused(reads({"data.packing_strategy=wrapped", "data.packing=true"}), 2, "wrapped");
}

TEST_F(CacheRefuses, AnotherRecipeAndBothOfRoleAndCache) {
  GoldenRecipe sft;
  expect_refused(retort(cache_command(write_recipe(folder_ / "sft", sft), folder_ / "none")), 2,
                 "has no teacher whose payloads could be kept");
  expect_refused(reads({"distill.teachers=[{role: teacher, cache: x}]"}), 2,
                 "has a `cache` beside it");
  expect_refused(reads({"distill.teachers=[{cache: " + folder_.path().string() + "}]"}), 2,
                 "is no cache of a teacher's payloads");
}

TEST_F(CacheRefuses, DamagedFiles) {
  const fs::path file = cache_ / "payloads" / "rank-0.payloads";
  const std::string whole = read_file(file);
  std::string damaged = whole;
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 1);
  std::ofstream(file, std::ios::binary) << damaged;
  expect_refused(reads({}), 1, "rank-0.payloads");
  std::ofstream(file, std::ios::binary) << whole.substr(0, whole.size() - 1);
  expect_refused(reads({}), 1, "is shorter than the");
  std::ofstream(file, std::ios::binary) << whole;
  std::ofstream(cache_ / "manifest.json") << "{\"teacher\": 1}";
  expect_refused(reads({}), 1, "is not the manifest of a cache");
}

// Killed while it writes: what is finished stays, what is torn goes, and the same command goes on.
class KilledCache : public WrittenCache {};

fs::path records_of(const fs::path& cache) { return cache / "payloads/rank-0.payloads"; }

// Records with the second one first. Each is as good as before, so that a writer that goes on keeps
// them; one that begins again writes them in the order of the rows.
std::string swapped(std::string records) {
  constexpr size_t kHead = 40, kBodyBytes = 8;  // where the head says them (payload_cache.h)
  const auto record_end = [&](size_t begin) {
    uint64_t body = 0;
    std::memcpy(&body, records.data() + begin + kBodyBytes, sizeof body);
    return begin + kHead + body;
  };
  const size_t first = record_end(0), second = record_end(first);
  const auto at = [&](size_t place) { return records.begin() + static_cast<ptrdiff_t>(place); };
  std::rotate(at(0), at(first), at(second));
  return records;
}

TEST_F(KilledCache, IsGoneOnWith) {
  TemporaryFolder folder;
  const std::string records = swapped(read_file(records_of(whole())));

  for (const size_t cut : {records.size() / 3, records.size() - 7}) {
    const fs::path cache = folder / ("cut" + std::to_string(cut));
    copy_folder(whole(), cache);
    fs::remove(cache / "manifest.json");
    std::ofstream(records_of(cache), std::ios::binary) << records.substr(0, cut);
    const CommandResult early =
        run_cached(folder / ("early" + cache.filename().string()), golden(), cache);
    expect_refused(early, 2, "is not complete; run the same `retort cache` again");

    const CommandResult again = retort(cache_command(recipe(), cache));
    ASSERT_EQ(again.exit_code, 0) << again.output;
    EXPECT_EQ(manifest_of(cache).at("packs").at("sequences"), 20);
    EXPECT_EQ(read_file(records_of(cache)), records) << "what was finished is not written again";
  }
}

constexpr int kManyRows = 2000;

// So many rows that a writer is still at them when a test has seen how far it is.
fs::path many_rows(const fs::path& folder) {
  const fs::path path = folder / "many.jsonl";
  std::ofstream file(path);
  for (int row = 0; row < kManyRows; ++row) {
    const std::string ids = std::to_string(row % 50) + ", " + std::to_string(row / 50) + ", 7, 5";
    file << "{\"input_ids\": [" << ids << "], \"labels\": [" << ids << "]}\n";
  }
  return path;
}

// Starts the writer and kills its launcher once there are `bytes` of records. False where the cache
// is complete: the kill came too late.
bool kill_at(size_t bytes, std::vector<std::string> writer, const fs::path& cache) {
  writer.insert(writer.begin(), retort_binary());
  Command command(writer);
  const auto written = [&] {
    std::error_code missing;
    const uintmax_t size = fs::file_size(records_of(cache), missing);
    return !missing && size >= bytes;
  };
  wait_until([&] { return written() || !command.running(); }, std::chrono::seconds(60),
             std::chrono::milliseconds(1));
  command.signal(SIGKILL);

  // The launcher is gone at once, and its processes soon after; only then nothing is written more.
  const CommandResult result = command.wait();
  EXPECT_TRUE(all_gone(cache.string())) << "a process was left behind";
  const bool complete = fs::exists(cache / "manifest.json");
  EXPECT_TRUE(complete || result.exit_code == 128 + SIGKILL) << result.output;
  return !complete;
}

// With SIGKILL to the launcher when a quarter, a half and three quarters of the records are there:
// the cache that is gone on with has the same bytes.
TEST_F(KilledCache, SurvivesItsLauncher) {
  TemporaryFolder folder;
  const Overrides rows{"data.train=[{path: " + many_rows(folder.path()).string() + "}]"};
  GoldenRecipe recipe = golden();
  recipe.rows = 1;
  std::string records = read_file(records_of(write_cache(folder / "writer", recipe, rows)));
  ASSERT_FALSE(HasFailure());
  const fs::path cache = folder / "killed";
  const auto writer = cache_command(folder / "writer/recipe.yaml", cache, rows);

  size_t kept = 0;
  for (const size_t quarter : {1, 2, 3}) {
    // A writer that was done before the kill is put back to where it began.
    constexpr int kTries = 5;
    int tried = 1;
    while (!kill_at(records.size() * quarter / 4, writer, cache) && tried < kTries) {
      ++tried;
      fs::remove(cache / "manifest.json");
      fs::resize_file(records_of(cache), kept);
    }
    ASSERT_FALSE(HasFailure());
    ASSERT_FALSE(fs::exists(cache / "manifest.json")) << "it is done before each of the kills";

    // A kill may tear the last record.
    const std::string now = read_file(records_of(cache));
    ASSERT_LT(kept, now.size());
    ASSERT_TRUE(records.starts_with(now)) << "after kill " << quarter;
    kept = now.size();
    if (quarter > 1) continue;
    records = swapped(records);
    std::ofstream(records_of(cache), std::ios::binary) << records.substr(0, kept);
  }

  const CommandResult again = retort(writer);
  ASSERT_EQ(again.exit_code, 0) << again.output;
  EXPECT_TRUE(read_file(records_of(cache)) == records) << "what was kept is not written again";
  const CommandResult trained = run_cached(folder / "reader", recipe, cache, rows);
  EXPECT_EQ(trained.exit_code, 0) << trained.output;
}

}  // namespace
}  // namespace retort::test

// What of a start ends before its folder is free for another one.
#include <fcntl.h>
#include <sys/file.h>

#include "base/process/owned_fd.h"
#include "launch/run/run_to_end.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/thrown.h"

namespace retort::launch {
namespace {

namespace fs = std::filesystem;

bool is_locked(const fs::path& folder) {
  const OwnedFd file(::open((folder / kRunLock).c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_GE(file.get(), 0);
  return ::flock(file.get(), LOCK_EX | LOCK_NB) != 0;
}

// Begins, and leaves in the folder what no run wrote, so that the folder cannot be made ready.
class SpoilingBackend final : public RunBackend {
 public:
  using RunBackend::RunBackend;

  std::unique_ptr<Start> begin(const Beginning& how, SignalCatcher&) override {
    how_ = how;
    return std::make_unique<SpoiledStart>(*this);
  }
  std::set<fs::path> files() const override {
    std::ofstream(run_folder_of(recipe()) / "thesis.tex") << "mine";
    return {};
  }

  Beginning how_;
  int ended_locked_ = 0;

 private:
  class SpoiledStart final : public Start {
   public:
    explicit SpoiledStart(SpoilingBackend& backend) : backend_(backend) {}
    ~SpoiledStart() override {
      backend_.ended_locked_ += is_locked(run_folder_of(backend_.recipe())) ? 1 : 0;
    }
    const recipes::Recipe& recipe() const override { return backend_.recipe(); }
    std::string bind() const override { return "127.0.0.1"; }
    std::unique_ptr<StartProcesses> enter(const RunFolder&) override { return nullptr; }

   private:
    SpoilingBackend& backend_;
  };
};

class StartRunTest : public test::FolderTest {};

TEST_F(StartRunTest, EndsItsHostsBeforeAFolderThatItCannotHaveIsFree) {
  recipes::Recipe recipe;
  recipe.output_dir = (folder_ / "run").string();
  put(folder_ / "run" / kResolvedRecipe, "recipe: sft\n");
  SpoilingBackend backend({.recipe = recipe, .recipe_file = "r.yaml"});
  SignalCatcher signals({SIGTERM});
  const Error error = test::error_of([&] {
    start_run({.recipe = recipe, .backend = backend, .signals = signals, .last_line = {}},
              {.mode = RunFolderMode::kOverwrite});
  });
  EXPECT_NE(error.message().find("thesis.tex"), std::string::npos) << error.message();
  EXPECT_TRUE(backend.how_.replaces);
  EXPECT_EQ(backend.ended_locked_, 1);
  EXPECT_FALSE(is_locked(folder_ / "run"));
  EXPECT_TRUE(fs::exists(folder_ / "run" / kResolvedRecipe)) << "nothing was removed";
}

}  // namespace
}  // namespace retort::launch
